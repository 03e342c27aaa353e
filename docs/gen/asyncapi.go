package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// message is one message: its body and headers by the names of their schemas, and golden files as examples.
type message struct {
	name, kind, summary string
	body, headers       string
	examples            []string
}

var messages = []message{
	{"submission", events.TypeTaskSubmitted, "What a user wants done.", "Submit", "submitHeaders", []string{"submit_typical"}},
	{"answer", "", "What became of a submission.", "Answer", "", []string{"answer_accepted", "answer_refused"}},
	{"taskChanged", events.TypeTaskChanged, "A task changed. Nats-Msg-Id is <task id>:<seq>.", "Event", "eventHeaders", []string{"event_success", "event_retry"}},
	{"gap", events.TypeEventGap, "Changes of a task that can no longer be told. Nats-Msg-Id is <task id>:<seq>:gap.", "Event", "eventHeaders", []string{"event_gap"}},
	{"signal", events.TypeTaskSignalled, "Have a look at these tasks.", "Signal", "eventHeaders", []string{"signal"}},
	{"refusedSubmission", events.TypeSubmitDead, "A submission that cannot become a task, and why.", "DeadSubmit", "eventHeaders", []string{"dead_submit"}},
	{"cancel", "", "A running task is to be cancelled.", "Cancel", "", []string{"cancel"}},
	{"error", "", "A refused request.", "Error", "errorHeaders", []string{"error"}},
	{"submitRequest", "", "", "SubmitRequest", "requestHeaders", []string{"submit_request"}},
	{"submitManyRequest", "", "", "SubmitManyRequest", "requestHeaders", []string{"submit_many_request"}},
	{"submitManyReply", "", "", "SubmitManyReply", "", []string{"submit_many_reply"}},
	{"idRequest", "", "", "IDRequest", "", []string{"id_request"}},
	{"task", "", "", "Task", "", []string{"task"}},
	{"listRequest", "", "", "ListRequest", "", []string{"list_request"}},
	{"listReply", "", "", "ListReply", "", []string{"list_reply"}},
	{"cancelReply", "", "", "CancelReply", "", []string{"cancel_reply"}},
	{"historyReply", "", "", "HistoryReply", "", []string{"history_reply"}},
	{"statsReply", "", "", "StatsReply", "", []string{"stats_reply"}},
	{"empty", "", "A request without members: an empty body, or {}.", "", "", nil},
	{"schedule", "", "", "Schedule", "", []string{"schedule"}},
	{"scheduleRequest", "", "", "ScheduleRequest", "", []string{"schedule_request"}},
	{"scheduleListRequest", "", "", "ScheduleListRequest", "", []string{"schedule_list_request"}},
	{"scheduleList", "", "", "ScheduleList", "", []string{"schedule_list"}},
}

// channel is one subject. Action is what ax does there; requests are received, and answered with reply or an error.
type channel struct {
	id, address, stream, description string
	action, message, reply           string
	more                             []string // further messages of the channel
}

var channels = []channel{
	{id: "submit", address: events.SubjectSubmit("{type}"), stream: events.StreamSubmit, action: "receive", message: "submission", reply: "answer",
		description: "Submissions of a task type. The acknowledgement of JetStream means queued, not valid: the answer goes to the subject in the header Ax-Reply-To, if there is one."},
	{id: "workflow", address: events.SubjectWorkflow, stream: events.StreamSubmit,
		description: "Reserved for workflows. This version refuses what is published here, into ax.dead.submit."},
	{id: "work", address: events.SubjectWork("{type}", "{channel}", "{lane}"), stream: events.StreamWork, action: "send", message: "signal",
		description: "Signals for workers, inside of ax. One durable pull consumer per subject is shared by all workers."},
	{id: "event", address: events.SubjectEvent("{type}", "{state}"), stream: events.StreamEvent, action: "send", message: "taskChanged", more: []string{"gap"},
		description: "Every change of every task, at least once, in order of seq for each task."},
	{id: "deadSubmit", address: events.SubjectDeadSubmit, stream: events.StreamDead, action: "send", message: "refusedSubmission",
		description: "Submissions that were refused, with the reason and the original."},
	{id: "deadWebhook", address: events.SubjectDeadWebhook, stream: events.StreamDead,
		description: "Reserved for webhooks that could not be delivered. This version publishes nothing here."},
	{id: "cancel", address: events.SubjectCancel, action: "send", message: "cancel",
		description: "Tells workers of a cancellation at once, over core NATS. A worker that misses it learns of it with its next heartbeat."},
	api(events.APISubmit, "Store one task. A positive answer means that it is stored: it survives the loss of NATS.", "submitRequest", "answer"),
	api(events.APISubmitMany, "Store up to 1,000 tasks, each accepted or refused by itself.", "submitManyRequest", "submitManyReply"),
	api(events.APIGet, "Show a task.", "idRequest", "task"),
	api(events.APIList, "List tasks by id from the greatest down, without payloads, results and history.", "listRequest", "listReply"),
	api(events.APICancel, "Cancel a task.", "idRequest", "cancelReply"),
	api(events.APIHistory, "Show the recorded changes of a task.", "idRequest", "historyReply"),
	api(events.APIStats, "Show the workers and what waits.", "empty", "statsReply"),
	api(events.APIRerun, "Submit the work of an ended task again, as a new task that names the old one.", "idRequest", "answer"),
	api(events.APISchedulePut, "Store a schedule, or replace the one of that name.", "schedule", "schedule"),
	api(events.APIScheduleGet, "Show a schedule.", "scheduleRequest", "schedule"),
	api(events.APIScheduleList, "List schedules by name.", "scheduleListRequest", "scheduleList"),
	api(events.APIScheduleDelete, "Remove a schedule. Tasks that it made stay.", "scheduleRequest", "scheduleRequest"),
}

func api(subject, description, request, reply string) channel {
	name := strings.TrimPrefix(subject, events.SubjectAPI+".")
	var id strings.Builder
	id.WriteString("api")
	for part := range strings.SplitSeq(name, ".") {
		id.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return channel{id: id.String(), address: subject, description: description, action: "receive", message: request, reply: reply}
}

// asyncAPI makes docs/asyncapi.yaml.
func asyncAPI(_ context.Context, root, _ string) (string, error) {
	src, err := readSource(filepath.Join(root, "pkg", "events"))
	if err != nil {
		return "", err
	}
	described, err := describeMessages(root)
	if err != nil {
		return "", err
	}
	doc := object{
		{"asyncapi", "3.0.0"},
		{"info", object{
			{"title", "ax"}, {"version", "1"},
			{"description", "Messages of ax, an async task scheduler. Bodies are JSON in camelCase; headers carry CloudEvents 1.0 in binary mode. Made by go run ./docs/gen from pkg/events and internal/natsbus."},
			{"license", object{{"name", "Apache-2.0"}}},
		}},
		{"defaultContentType", "application/json"},
		{"servers", object{{"local", object{
			{"host", "127.0.0.1:4222"}, {"protocol", "nats"}, {"description", "NATS 2.11 or later with JetStream, as `ax dev` runs it."}}}}},
		{"channels", describeChannels()},
		{"operations", describeOperations()},
		{"components", object{{"messages", described}, {"schemas", append(schemas(src), headerSchemas()...)}}},
		{"x-streams", describeStreams()},
	}
	var b bytes.Buffer
	b.WriteString("# Made by go run ./docs/gen. Edit the code, not this file.\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return "", err
	}
	return b.String(), enc.Close()
}

var parameters = map[string]string{
	"type":    "Task type: 1 to 64 characters of a-z 0-9 _ -, beginning with a letter or digit.",
	"channel": "Channel of workers, stable unless they say otherwise.",
	"lane":    "Group of priorities.",
	"state":   "State that the task is in now.",
}

func describeChannels() object {
	var out object
	for _, c := range channels {
		o := object{{"address", c.address}, {"description", c.description}}
		if m := c.messages(); len(m) > 0 {
			o = append(o, member{"messages", refs(m)})
		}
		var params object
		for _, name := range []string{"type", "channel", "lane", "state"} {
			if !strings.Contains(c.address, "{"+name+"}") {
				continue
			}
			p := object{{"description", parameters[name]}}
			switch name {
			case "lane":
				p = append(p, member{"enum", lanes()})
			case "state":
				p = append(p, member{"enum", states()})
			}
			params = append(params, member{name, p})
		}
		if params != nil {
			o = append(o, member{"parameters", params})
		}
		if c.stream != "" {
			o = append(o, member{"x-stream", c.stream})
		}
		out = append(out, member{c.id, o})
		if c.reply != "" { // where it goes is the asker's choice
			out = append(out, member{c.id + "Reply", object{
				{"description", "Answers to " + c.address + ". The asker names the subject."}, {"messages", refs(c.answers())}}})
		}
	}
	return out
}

func lanes() []string {
	var out []string
	for _, l := range task.Lanes {
		out = append(out, string(l))
	}
	return out
}

func (c channel) messages() []string {
	if c.message == "" {
		return nil
	}
	return append([]string{c.message}, c.more...)
}

func (c channel) answers() []string {
	if c.id == "submit" { // an answer holds its own error
		return []string{c.reply}
	}
	return []string{c.reply, "error"}
}

func refs(names []string) object {
	var out object
	for _, name := range names {
		out = append(out, member{name, object{{"$ref", "#/components/messages/" + name}}})
	}
	return out
}

func describeOperations() object {
	var out object
	for _, c := range channels {
		if c.action == "" {
			continue
		}
		of := func(channel string, names []string) []object {
			var list []object
			for _, name := range names {
				list = append(list, object{{"$ref", "#/channels/" + channel + "/messages/" + name}})
			}
			return list
		}
		o := object{{"action", c.action}, {"channel", object{{"$ref", "#/channels/" + c.id}}}, {"summary", c.description}, {"messages", of(c.id, c.messages())}}
		if c.reply != "" {
			reply := object{{"channel", object{{"$ref", "#/channels/" + c.id + "Reply"}}}, {"messages", of(c.id+"Reply", c.answers())}}
			if c.id == "submit" {
				reply = append(reply, member{"address", object{
					{"description", "JetStream keeps no reply subject, so a header names it."}, {"location", "$message.header#/" + events.HeaderReplyTo}}})
			}
			o = append(o, member{"reply", reply})
		}
		out = append(out, member{c.action + strings.ToUpper(c.id[:1]) + c.id[1:], o})
	}
	return out
}

func describeMessages(root string) (object, error) {
	var out object
	for _, m := range messages {
		o := object{{"name", m.name}, {"title", m.kind}, {"summary", m.summary}, {"contentType", "application/json"}}
		if m.headers != "" {
			o = append(o, member{"headers", ref(m.headers)})
		}
		if m.body == "" {
			o = append(o, member{"payload", object{{"type", "object"}, {"additionalProperties", false}}})
		} else {
			o = append(o, member{"payload", ref(m.body)})
		}
		var examples []object
		for _, name := range m.examples {
			text, err := golden(root, name)
			if err != nil {
				return nil, err
			}
			var value yaml.Node // keeps the order of the members
			if err := yaml.Unmarshal(text, &value); err != nil {
				return nil, fmt.Errorf("example %s: %w", name, err)
			}
			plain(&value)
			examples = append(examples, object{{"name", name}, {"payload", value.Content[0]}})
		}
		if examples != nil {
			o = append(o, member{"examples", examples})
		}
		out = append(out, member{m.name, o})
	}
	return out, nil
}

// plain writes JSON that was read as YAML in YAML's own style.
func plain(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	for _, c := range n.Content {
		plain(c)
	}
}

// golden is an example of a message, as the tests of pkg/events keep it.
func golden(root, name string) (json.RawMessage, error) {
	text, err := os.ReadFile(filepath.Join(root, "pkg", "events", "testdata", name+".json"))
	return bytes.TrimSpace(text), err
}

func headerSchemas() object {
	text := func(description string) object { return object{{"type", "string"}, {"description", description}} }
	cloud := object{
		{events.HeaderCESpec, object{{"type", "string"}, {"const", "1.0"}}},
		{events.HeaderCEID, text("identifies the message together with ce-source")},
		{events.HeaderCESource, text("the part of ax that sent it, such as /ax/notifier")},
		{events.HeaderCEType, text("what the message is, with a version")},
		{events.HeaderCESubject, text("the task id, where there is one")},
		{events.HeaderCETime, object{{"type", "string"}, {"format", "date-time"}}},
	}
	msgID := member{events.HeaderMsgID, text("a copy with the same id within two minutes is stored once")}
	trace := member{events.HeaderTraceparent, text("W3C trace context, kept with the task")}
	headers := func(properties ...member) object {
		return object{{"type", "object"}, {"properties", object(properties)}}
	}
	return object{
		{"submitHeaders", headers(append([]member{msgID, {events.HeaderReplyTo, text("a plain subject that the answer is published to; not below ax. or $")}, trace}, cloud...)...)},
		{"eventHeaders", headers(append([]member{msgID}, cloud...)...)},
		{"requestHeaders", headers(trace)},
		{"errorHeaders", headers(
			member{"Nats-Service-Error-Code", text("an HTTP status that goes with the code")}, member{"Nats-Service-Error", text("the sentence of the error")})},
	}
}

func describeStreams() object {
	var out object
	for _, s := range natsbus.Streams(natsbus.Sizes{}, 1) {
		o := object{{"subjects", s.Subjects}, {"description", s.Description}, {"retention", strings.ToLower(s.Retention.String())},
			{"storage", strings.ToLower(s.Storage.String())}, {"discard", strings.ToLower(s.Discard.String())},
			{"maxBytes", s.MaxBytes}, {"duplicateWindow", s.Duplicates.String()}}
		if s.MaxAge > 0 {
			o = append(o, member{"maxAge", s.MaxAge.String()})
		}
		if s.DiscardNewPerSubject {
			o = append(o, member{"maxMessagesPerSubject", s.MaxMsgsPerSubject})
		}
		out = append(out, member{s.Name, o})
	}
	return out
}
