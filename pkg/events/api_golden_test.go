package events_test

import (
	"encoding/json"

	"github.com/ax-scheduler/ax/pkg/events"
)

func init() {
	for name, message := range goldenRequests {
		golden[name] = message
	}
	for name, message := range goldenTypical {
		golden[name] = message
	}
}

const goldenTime = "2026-01-02T15:04:05.006Z"

var goldenError = &events.EventError{Message: "no such host", Code: "dns", Cause: "error"}

// The bodies of ax.api, with every field set.
var goldenRequests = map[string]any{
	"error": events.Error{Code: events.CodeUniqueHeld, Field: "unique.key", Value: "invoice-7", Allowed: "a key that no other task of the type holds",
		Holder: "order-7", Message: `field unique.key: "invoice-7" is held by task order-7; wait until it is free, or submit with onConflict keep to be given that id`},
	"submit_many_request": events.SubmitManyRequest{Tasks: []events.SubmitRequest{
		{Type: "email", Submit: events.Submit{ID: "order-7", Payload: json.RawMessage(`{"to":"a@example.com"}`)}},
		{Type: "report", Submit: events.Submit{Priority: ptr(7), Delay: ptr("10m")}},
	}},
	"submit_many_reply": events.SubmitManyReply{Answers: []events.Answer{
		{ID: "order-7", Accepted: true}, {Error: &events.Error{Code: events.CodeTooLarge, Field: "payload", Message: "field payload: too large"}},
	}},
	"id_request":   events.IDRequest{ID: "order-7", By: "operator-1"},
	"cancel_reply": events.CancelReply{ID: "order-7", Status: "cancelling"},
	"list_request": events.ListRequest{Type: "email", State: "failed", Limit: 100, After: "order-7"},
	"list_reply": events.ListReply{Next: "order-7", Tasks: []events.Task{{
		ID: "order-7", Type: "email", State: "pending", Reason: "submitted", Priority: 5, Channel: "stable", CreatedAt: goldenTime,
		ScheduledAt: goldenTime, MaxAttempts: 3, MaxLosses: 3, Timeout: "30m0s", Seq: 1,
	}}},
	"task": events.Task{
		ID: "order-7", Type: "email", State: "failed", Reason: "exhausted", Priority: 2, Channel: "stable", CreatedAt: goldenTime,
		ScheduledAt: goldenTime, StartedAt: goldenTime, FinishedAt: goldenTime, ExpiresAt: goldenTime, CancelRequestedAt: goldenTime,
		Attempts: 4, Failures: 3, Losses: 1, MaxAttempts: 3, MaxLosses: 3, Timeout: "1m30s", WorkerID: "worker-1", LeaseUntil: goldenTime,
		ExecutionID: "CLAIM:order-7", Payload: json.RawMessage(`{"to":"a@example.com"}`), PayloadSize: 22, Result: json.RawMessage(`{"ok":true}`),
		ResultSize: 11, LastError: goldenError, Progress: json.RawMessage(`{"done":1,"of":3}`), BizKey: "customer-9",
		Labels: map[string]string{"team": "red"}, RerunOf: "order-6", Source: "nats", Seq: 9,
	},
	"history_reply": events.HistoryReply{ID: "order-7", Entries: []events.HistoryEntry{
		{Seq: 1, At: goldenTime, To: "pending", Reason: "submitted", By: "submitter/api"},
		{Seq: 2, At: goldenTime, From: "pending", To: "running", Reason: "claimed", By: "worker/worker-1", Attempt: 1, Claim: "CLAIM"},
		{Seq: 3, At: goldenTime, From: "running", To: "pending", Reason: "retry", By: "worker/worker-1", Attempt: 1, Claim: "CLAIM", Error: goldenError},
	}},
	"stats_reply": events.StatsReply{Now: goldenTime, Services: []events.Service{{ID: "notifier/host-1-00ab12", Service: "notifier", Host: "host", PID: 1, Version: "v1",
		Leads: true, Conditions: []string{"events are made again from history"}, SeenAt: goldenTime}},
		Attention: []string{"no cron is there: schedules do not fire", "notifier/host-1-00ab12: events are made again from history"}, BacklogSeconds: 1.5, DeadLetters: 2, Workers: []events.Worker{{
			ID: "worker-1", Host: "host-a", PID: 42, Types: []string{"email", "report"}, Slots: 20, Channel: "stable", Version: "1.2.3", SeenAt: goldenTime,
		}}},
	"schedule": events.Schedule{
		Name: "nightly", Cron: "30 2 * * *", Zone: "Europe/Berlin", Misfire: "all", CatchUp: "2h0m0s", CatchUpMax: 50, Overlap: "allow",
		Task:   events.SubmitRequest{Type: "report", Submit: events.Submit{Payload: json.RawMessage(`{"kind":"daily"}`)}},
		NextAt: goldenTime, LastAt: goldenTime, Broken: "the zone is not known any more",
	},
	"schedule_request":      events.ScheduleRequest{Name: "nightly"},
	"schedule_list_request": events.ScheduleListRequest{After: "nightly"},
	"schedule_list": events.ScheduleList{Next: "nightly", Schedules: []events.Schedule{
		{Name: "nightly", Cron: "@every 90s", Task: events.SubmitRequest{Type: "report"}, NextAt: goldenTime},
	}},
}

// Messages as they usually are, for the documentation.
var goldenTypical = map[string]any{
	"submit_typical": events.Submit{
		ID: "order-7", Payload: json.RawMessage(`{"to":"a@example.com"}`), Priority: ptr(2), Delay: ptr("90s"), Timeout: ptr("5m"), MaxAttempts: ptr(5),
		Retry: &events.Retry{Base: ptr("2s"), Factor: ptr(3.0), Max: ptr("10m")}, BizKey: "customer-9", Labels: map[string]string{"team": "red"},
	},
	"event_success": events.Event{
		ID: "order-7", Type: "email", Seq: 3, From: "running", State: "success", Reason: "succeeded", Attempt: 1,
		ExecutionID: "CLAIM:order-7", At: goldenTime, By: "worker/worker-1", Result: json.RawMessage(`{"receipt":"r-1"}`), BizKey: "customer-9",
		Labels: map[string]string{"team": "red"},
	},
	"event_retry": events.Event{
		ID: "order-7", Type: "email", Seq: 3, From: "running", State: "pending", Reason: "retry", Attempt: 1,
		ExecutionID: "CLAIM:order-7", At: goldenTime, By: "worker/worker-1", ScheduledAt: "2026-01-02T15:04:06.306Z", Error: goldenError,
	},
	"event_gap": events.Event{
		ID: "order-7", Type: "email", Seq: 150, State: "running", Attempt: 51, At: goldenTime, By: "worker/worker-1", Gap: &events.Gap{FromSeq: 12, ToSeq: 150},
	},
	"answer_accepted": events.Answer{ID: "order-7", Accepted: true},
	"answer_refused": events.Answer{ID: "order-7", Error: &events.Error{Code: events.CodeInvalid, Field: "delay", Value: "90",
		Allowed: `a duration with a unit, such as "90s", "1h30m" or "PT90S", not negative`,
		Message: `field delay: "90" is not allowed; give a duration with a unit, such as "90s", "1h30m" or "PT90S", not negative`}},
}
