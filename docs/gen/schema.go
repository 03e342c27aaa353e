package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// object is a YAML mapping that keeps its order.
type object []member

type member struct {
	key   string
	value any
}

// MarshalYAML writes the members in their order; those without a value are left out.
func (o object) MarshalYAML() (any, error) {
	node := &yaml.Node{Kind: yaml.MappingNode}
	for _, m := range o {
		if m.value == nil || m.value == "" {
			continue
		}
		var key, value yaml.Node
		if err := key.Encode(m.key); err != nil {
			return nil, err
		}
		if err := value.Encode(m.value); err != nil {
			return nil, err
		}
		node.Content = append(node.Content, &key, &value)
	}
	return node, nil
}

func (o object) get(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// bodies are all structs that travel. What comes in at a door is strict: a field that is not named here is refused. What
// goes out may get further fields in later versions.
var bodies = []struct {
	value  any
	strict bool
}{
	{events.Submit{}, true}, {events.Retry{}, true}, {events.Unique{}, true}, {events.Answer{}, false}, {events.Error{}, false},
	{events.DeadSubmit{}, false}, {events.Event{}, false}, {events.EventError{}, false}, {events.Gap{}, false},
	{events.Signal{}, false}, {events.SignalTask{}, false}, {events.Cancel{}, false},
	{events.SubmitRequest{}, true}, {events.SubmitManyRequest{}, true}, {events.SubmitManyReply{}, false},
	{events.IDRequest{}, true}, {events.CancelReply{}, false}, {events.ListRequest{}, true}, {events.ListReply{}, false},
	{events.HistoryReply{}, false}, {events.HistoryEntry{}, false}, {events.Task{}, false}, {events.StatsReply{}, false}, {events.Service{}, false},
	{events.Worker{}, false}, {events.Schedule{}, true}, {events.ScheduleRequest{}, true}, {events.ScheduleListRequest{}, true},
	{events.ScheduleList{}, false},
}

func ref(name string) object { return object{{"$ref", "#/components/schemas/" + name}} }

// schemas makes the JSON schema of every body.
func schemas(src *source) object {
	var out object
	for _, b := range bodies {
		t := reflect.TypeOf(b.value)
		s := object{{"type", "object"}, {"description", src.types[t.Name()]}}
		var properties object
		var required []string
		collect(src, t, &properties, &required)
		if len(required) > 0 {
			s = append(s, member{"required", required})
		}
		s = append(s, member{"properties", properties})
		if b.strict {
			s = append(s, member{"additionalProperties", false})
		}
		out = append(out, member{t.Name(), s})
	}
	return out
}

func collect(src *source, t reflect.Type, properties *object, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			collect(src, f.Type, properties, required)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !strings.Contains(options, "omitempty") {
			*required = append(*required, name)
		}
		description := src.fields[t.Name()][name]
		if allowed := f.Tag.Get("allowed"); allowed != "" {
			description = strings.TrimPrefix(description+"; "+allowed, "; ")
		}
		s := typeOf(f.Type)
		if more, ok := refined[t.Name()+"."+name]; ok {
			if text, ok := more.get("description").(string); ok {
				description = text
			}
			s = append(s, slices.DeleteFunc(slices.Clone(more), func(m member) bool { return m.key == "description" })...)
		}
		if s.get("$ref") == nil { // nothing may stand beside a reference
			s = append(s, member{"description", description})
		}
		*properties = append(*properties, member{name, s})
	}
}

var raw = reflect.TypeFor[json.RawMessage]()

func typeOf(t reflect.Type) object {
	switch {
	case t == raw:
		return object{{"title", "any JSON"}}
	case t.Kind() == reflect.Pointer:
		return typeOf(t.Elem())
	case t.Kind() == reflect.Struct:
		return ref(t.Name())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return object{{"type", "string"}, {"contentEncoding", "base64"}}
	case t.Kind() == reflect.Slice:
		return object{{"type", "array"}, {"items", typeOf(t.Elem())}}
	case t.Kind() == reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", typeOf(t.Elem())}}
	case t.Kind() == reflect.String:
		return object{{"type", "string"}}
	case t.Kind() == reflect.Bool:
		return object{{"type", "boolean"}}
	case t.Kind() == reflect.Float64:
		return object{{"type", "number"}}
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64, t.Kind() == reflect.Uint64:
		return object{{"type", "integer"}}
	}
	panic(fmt.Sprintf("no schema for %v", t)) // a field of a kind that no message had before
}

func states() []string {
	var out []string
	for _, s := range task.States {
		out = append(out, string(s))
	}
	return out
}

const notYet = "not supported by this version: a submission that has it is refused with code unsupported"

// refined is what the types alone do not say.
var refined = map[string]object{
	"Submit.id":                 {{"pattern", "^[A-Za-z0-9._:-]{1,128}$"}, {"description", "chosen by the caller, not beginning with cron: or ax:; absent: one is made"}},
	"Submit.payload":            {{"description", "any JSON up to 512 KiB, given to the handler as it is"}},
	"Submit.priority":           {{"minimum", task.MinPriority}, {"maximum", task.MaxPriority}, {"default", task.DefaultPriority}, {"description", "0 is the most urgent"}},
	"Submit.scheduledAt":        {{"format", "date-time"}},
	"Submit.expiresAt":          {{"format", "date-time"}, {"description", "the task fails with reason expired if it has not started by then"}},
	"Submit.timeout":            {{"default", "30m"}, {"description", "bound of each attempt, 1ms to 168h: a duration as a string with a unit"}},
	"Submit.maxAttempts":        {{"minimum", 1}, {"maximum", task.MaxMaxAttempts}, {"default", task.DefaultMaxAttempts}, {"description", "how often the task may fail before it is failed for good"}},
	"Submit.maxLosses":          {{"minimum", 0}, {"maximum", task.MaxMaxLosses}, {"default", task.DefaultMaxLosses}, {"description", "how many lost workers the task survives; 0 means at most once"}},
	"Submit.bizKey":             {{"description", "a key of the caller's own world, up to 256 bytes, repeated in every event"}},
	"Submit.labels":             {{"description", "up to 32 names and values, repeated in every event"}},
	"Submit.onExhausted":        {{"enum", []string{task.DeadLetter, task.Ignore}}, {"default", task.DeadLetter}, {"description", "whether a task that fails for good leaves a dead letter"}},
	"Submit.dependsOn":          {{"description", notYet}},
	"Submit.condition":          {{"description", notYet}},
	"Submit.waitFor":            {{"description", notYet}},
	"Submit.concurrencyKey":     {{"description", notYet}},
	"Unique.key":                {{"minLength", 1}, {"description", "up to 256 bytes; each type has keys of its own"}},
	"Unique.scope":              {{"enum", []task.UniqueScope{task.ScopeActive, task.ScopeDuration, task.ScopeForever}}, {"default", task.ScopeActive}, {"description", "how long the key is held"}},
	"Unique.for":                {{"description", "how long, with scope duration: 1s to 8760h"}},
	"Unique.onConflict":         {{"enum", []task.OnConflict{task.ConflictReject, task.ConflictKeep, task.ConflictReplace, task.ConflictDebounce}}, {"default", task.ConflictReject}, {"description", "what becomes of a submission whose key is held"}},
	"Unique.maxWait":            {{"description", "how long debounce puts the start off at most; default ten delays"}},
	"Retry.factor":              {{"default", task.DefaultRetry.Factor}},
	"Retry.jitter":              {{"default", task.DefaultRetry.Jitter}, {"description", "the largest share of the delay that is added at random"}},
	"SubmitRequest.type":        {{"pattern", "^[a-z0-9][a-z0-9_-]{0,63}$"}},
	"SubmitManyRequest.tasks":   {{"minItems", 1}, {"maxItems", 1000}},
	"Event.state":               {{"enum", states()}},
	"Event.from":                {{"enum", states()}, {"description", "absent on the first event of a task"}},
	"Event.seq":                 {{"minimum", 1}},
	"Event.reason":              {{"description", "why, see docs/lifecycle.md; empty on a gap event"}},
	"Event.executionId":         {{"description", "names the attempt for ever: <claim>:<task id>"}},
	"Event.result":              {{"description", "what the handler returned, up to 64 KiB"}},
	"Event.resultSize":          {{"description", "bytes of a result that was left out because it is larger"}},
	"Signal.tasks":              {{"minItems", 1}, {"maxItems", events.MaxSignalTasks}},
	"Task.state":                {{"enum", states()}},
	"CancelReply.status":        {{"enum", []string{string(task.CancelDone), string(task.CancelAsked), string(task.CancelTooLate)}}},
	"ListRequest.limit":         {{"minimum", 1}, {"maximum", 1000}, {"default", 50}},
	"Schedule.misfire":          {{"enum", []string{task.MisfireSkip, task.MisfireOnce, task.MisfireAll}}, {"default", task.MisfireOnce}},
	"Schedule.catchUp":          {{"default", "24h"}, {"description", "with misfire all: how far back it goes, 1s to 744h"}},
	"Schedule.catchUpMax":       {{"minimum", 1}, {"maximum", 1000}, {"default", task.DefaultCatchUpMax}},
	"Schedule.overlap":          {{"enum", []string{task.OverlapAllow}}},
	"Schedule.name":             {{"pattern", "^[a-z0-9][a-z0-9_-]{0,63}$"}},
	"StatsReply.now":            {{"format", "date-time"}, {"description", "the database's time, which the other times are to be compared with"}},
	"StatsReply.backlogSeconds": {{"description", "age in seconds of the oldest due task that nobody took; 0: there is none"}},
}
