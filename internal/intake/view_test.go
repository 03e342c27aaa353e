package intake

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func ended() *task.Task {
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	change := task.Change{Seq: 3, Type: "email", Channel: "stable", From: task.Running, To: task.Failed, Reason: task.ReasonExhausted, At: at(3)}
	return &task.Task{
		ID: "t1", Type: "email", State: task.Failed, Priority: 2, Channel: "stable", ScheduledAt: at(0), CreatedAt: at(0), StartedAt: at(1),
		FinishedAt: at(3), Attempts: 1, Failures: 1, MaxAttempts: 1, MaxLosses: 3, Timeout: time.Minute, Retry: task.DefaultRetry,
		OnExhausted: task.Ignore, ExpiresAt: at(60), Payload: json.RawMessage(`{"a":1.0}`), Progress: json.RawMessage(`50`),
		LastError: &task.Error{Message: "no", Code: "E1", Cause: task.ReasonError, Stack: "secret stack"}, Claim: "c1", BizKey: "b",
		Labels: map[string]string{"x": "y"}, Echo: `{"bizKey":"b","labels":{"x":"y"}}`, Source: SourceNATS, SubmitHash: "v1:x",
		Traceparent: "t", Seq: 3, Change: change.String(),
		History: []task.Entry{
			{Seq: 1, At: at(0), To: task.Pending, Reason: task.ReasonSubmitted, By: "submitter/nats"},
			{Seq: 2, At: at(1), From: task.Pending, To: task.Running, Reason: task.ReasonClaimed, By: "w1", Attempt: 1, Claim: "c1"},
			{Seq: 3, At: at(3), From: task.Running, To: task.Failed, Reason: task.ReasonExhausted, By: "w1", Attempt: 1, Claim: "c1",
				Error: &task.Error{Message: "no", Code: "E1", Cause: task.ReasonError}},
		},
	}
}

func TestView(t *testing.T) {
	text, err := json.Marshal(View(ended()))
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"t1","type":"email","state":"failed","reason":"exhausted","priority":2,"channel":"stable",
		"createdAt":"2026-03-01T12:00:00.000Z","scheduledAt":"2026-03-01T12:00:00.000Z","startedAt":"2026-03-01T12:00:01.000Z",
		"finishedAt":"2026-03-01T12:00:03.000Z","expiresAt":"2026-03-01T12:01:00.000Z","attempts":1,"failures":1,"losses":0,"maxAttempts":1,"maxLosses":3,
		"timeout":"1m0s","executionId":"c1:t1","payload":{"a":1.0},"progress":50,"lastError":{"message":"no","code":"E1","cause":"error"},
		"bizKey":"b","labels":{"x":"y"},"source":"nats","seq":3}`, string(text))
	brief := Brief(ended())
	require.Nil(t, brief.Payload)
	require.Nil(t, brief.Progress)
	require.Nil(t, brief.Result)
}

func TestHistory(t *testing.T) {
	text, err := json.Marshal(History(ended()))
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"seq":1,"at":"2026-03-01T12:00:00.000Z","to":"pending","reason":"submitted","by":"submitter/nats","attempt":0},
		{"seq":2,"at":"2026-03-01T12:00:01.000Z","from":"pending","to":"running","reason":"claimed","by":"w1","attempt":1,"claim":"c1"},
		{"seq":3,"at":"2026-03-01T12:00:03.000Z","from":"running","to":"failed","reason":"exhausted","by":"w1","attempt":1,"claim":"c1","error":{"message":"no","code":"E1","cause":"error"}}]`, string(text))
}

func TestRerun(t *testing.T) {
	old := ended()
	again, err := Rerun(old, time.Time{})
	require.NoError(t, err)
	require.Equal(t, &task.Task{
		ID: again.ID, FixedID: true, RerunOf: "t1", Type: "email", State: task.Pending, Channel: "stable", Priority: 2, Source: SourceAPI,
		MaxAttempts: 1, MaxLosses: 3, Timeout: time.Minute, Retry: task.DefaultRetry, OnExhausted: task.Ignore, Payload: old.Payload,
		BizKey: "b", Labels: old.Labels, Echo: old.Echo, SubmitHash: again.SubmitHash,
	}, again)
	require.True(t, strings.HasPrefix(again.ID, "ax:"), "no caller can take the id")
	require.Error(t, task.ValidateID(again.ID))

	twice, err := Rerun(old, time.Time{})
	require.NoError(t, err)
	require.Equal(t, again, twice, "asked twice it is one task")
	again.State = task.Cancelled
	third, err := Rerun(again, time.Time{})
	require.NoError(t, err)
	require.NotEqual(t, again.ID, third.ID)

	for _, s := range []task.State{task.Waiting, task.Pending, task.Running} {
		old.State = s
		_, err = Rerun(old, time.Time{})
		require.Equal(t, events.CodeInvalid, Refusal(err).Code, s)
	}
}

func schedule(change func(*events.Schedule)) *events.Schedule {
	s := &events.Schedule{Name: "nightly", Cron: "30 2 * * *", Zone: "Europe/Berlin",
		Task: events.SubmitRequest{Type: "report", Submit: events.Submit{Payload: json.RawMessage(`{"day": "<today>"}`)}}}
	if change != nil {
		change(s)
	}
	return s
}

func TestBuildSchedule(t *testing.T) {
	got, err := BuildSchedule(schedule(nil), now)
	require.NoError(t, err)
	require.Equal(t, &task.Schedule{Name: "nightly", Cron: "30 2 * * *", Zone: "Europe/Berlin", Misfire: "once", Overlap: "allow",
		TaskType: "report", Template: json.RawMessage(`{"payload":{"day":"<today>"}}`), NextAt: time.Date(2026, 3, 2, 1, 30, 0, 0, time.UTC)}, got)

	every, err := BuildSchedule(schedule(func(s *events.Schedule) { s.Cron = "@every 7m" }), now.Add(5e8))
	require.NoError(t, err)
	require.Equal(t, now, every.Anchor)
	require.Equal(t, now.Add(7*time.Minute), every.NextAt)

	slot, err := Slot(*got, "cron:nightly:2026-03-02T01:30:00Z")
	require.NoError(t, err)
	require.Equal(t, "cron:nightly:2026-03-02T01:30:00Z", slot.ID)
	require.True(t, slot.FixedID)
	require.Equal(t, SourceCron, slot.Source)
	require.Equal(t, "report", slot.Type)
	require.True(t, slot.ScheduledAt.IsZero())

	all, err := BuildSchedule(schedule(func(s *events.Schedule) { s.Misfire, s.CatchUp = "all", "2h" }), now)
	require.NoError(t, err)
	require.Equal(t, 2*time.Hour, all.CatchUp)
	require.Equal(t, 100, all.CatchUpMax)
	require.Equal(t, "2h0m0s", ViewSchedule(*all).CatchUp)

	view := ViewSchedule(*got)
	require.Equal(t, "2026-03-02T01:30:00.000Z", view.NextAt)
	view.NextAt, view.Misfire, view.Overlap = "", "", ""
	want := schedule(nil)
	want.Task.Payload = json.RawMessage(`{"day":"<today>"}`)
	require.Equal(t, *want, view)
}

func TestRefusedSchedules(t *testing.T) {
	text := "x"
	for name, c := range map[string]struct {
		change      func(*events.Schedule)
		code, field string
	}{
		"no name":        {func(s *events.Schedule) { s.Name = "" }, events.CodeInvalid, "name"},
		"name":           {func(s *events.Schedule) { s.Name = "a:b" }, events.CodeInvalid, "name"},
		"cron":           {func(s *events.Schedule) { s.Cron = "TZ=0" }, events.CodeInvalid, "cron"},
		"zone":           {func(s *events.Schedule) { s.Zone = "Mars" }, events.CodeInvalid, "zone"},
		"misfire":        {func(s *events.Schedule) { s.Misfire = "every" }, events.CodeInvalid, "misfire"},
		"catchUp":        {func(s *events.Schedule) { s.CatchUp = "1h" }, events.CodeInvalid, "catchUp"},
		"catchUpMax":     {func(s *events.Schedule) { s.Misfire, s.CatchUpMax = "skip", 3 }, events.CodeInvalid, "catchUpMax"},
		"catchUp long":   {func(s *events.Schedule) { s.Misfire, s.CatchUp = "all", "745h" }, events.CodeInvalid, "catchUp"},
		"catchUp form":   {func(s *events.Schedule) { s.Misfire, s.CatchUp = "all", "60" }, events.CodeInvalid, "catchUp"},
		"catchUp short":  {func(s *events.Schedule) { s.Misfire, s.CatchUp = "all", "1ms" }, events.CodeInvalid, "catchUp"},
		"too many":       {func(s *events.Schedule) { s.Misfire, s.CatchUpMax = "all", 1001 }, events.CodeInvalid, "catchUpMax"},
		"too few":        {func(s *events.Schedule) { s.Misfire, s.CatchUpMax = "all", -1 }, events.CodeInvalid, "catchUpMax"},
		"overlap":        {func(s *events.Schedule) { s.Overlap = "skip" }, events.CodeUnsupported, "overlap"},
		"nextAt":         {func(s *events.Schedule) { s.NextAt = "x" }, events.CodeInvalid, "nextAt"},
		"type":           {func(s *events.Schedule) { s.Task.Type = "a.b" }, events.CodeInvalid, "task.type"},
		"id":             {func(s *events.Schedule) { s.Task.ID = "x" }, events.CodeInvalid, "task.id"},
		"delay":          {func(s *events.Schedule) { s.Task.Delay = &text }, events.CodeInvalid, "task.delay"},
		"scheduledAt":    {func(s *events.Schedule) { s.Task.ScheduledAt = &text }, events.CodeInvalid, "task.scheduledAt"},
		"expiresAt":      {func(s *events.Schedule) { s.Task.ExpiresAt = &text }, events.CodeInvalid, "task.expiresAt"},
		"timeout":        {func(s *events.Schedule) { s.Task.Timeout = &text }, events.CodeInvalid, "task.timeout"},
		"payload":        {func(s *events.Schedule) { s.Task.Payload = json.RawMessage(`"` + strings.Repeat("x", 600_000) + `"`) }, events.CodeTooLarge, "task.payload"},
		"concurrencyKey": {func(s *events.Schedule) { s.Task.ConcurrencyKey = "k" }, events.CodeUnsupported, "task.concurrencyKey"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := BuildSchedule(schedule(c.change), now)
			var refused *events.Error
			require.True(t, errors.As(err, &refused), "accepted, or refused by %v", err)
			require.Equal(t, c.code, refused.Code, refused.Message)
			require.Equal(t, c.field, refused.Field, refused.Message)
		})
	}
}

// A template may have been planted, or stored by another version: its slots must fail by themselves and not take cron down.
func TestSlotOfABrokenTemplate(t *testing.T) {
	for _, template := range []string{``, `{`, `{"maxAttempt":1}`, `{"priority":77}`, `{"unique":{"key":"k"}}`} {
		_, err := Slot(task.Schedule{Name: "n", TaskType: "report", Template: json.RawMessage(template)}, "cron:n:x")
		var refused *task.FieldError
		require.True(t, errors.As(err, &refused), "%s: %v", template, err)
		require.True(t, strings.HasPrefix(refused.Field, "task."))
	}
}
