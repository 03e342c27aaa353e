package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// serve starts a submitter that answers requests over NATS.
func (k *stack) serve() {
	k.t.Helper()
	l := k.live(Config{}, nil)
	var endpoints []natsbus.Endpoint
	for subject, handle := range NewAPI(l.Submitter, k.store, 0).Endpoints() {
		endpoints = append(endpoints, natsbus.Endpoint{Subject: subject, Handle: handle})
	}
	service, err := l.bus.Serve(natsbus.ServiceOptions{Name: "submitter"}, endpoints...)
	require.NoError(k.t, err)
	require.NoError(k.t, l.bus.Ready(k.t.Context())) // the server knows the subjects now
	k.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(k.t, service.Stop(ctx))
	})
}

// ask sends a body as it is and reads the reply.
func ask[Out any](k *stack, subject, body string) (out Out, refused *events.Error) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	err := k.bus.Request(ctx, subject, json.RawMessage(body), &out)
	if err != nil {
		require.True(k.t, errors.As(err, &refused), "%s: %v", subject, err)
	}
	return out, refused
}

func must[Out any](k *stack, subject, body string) Out {
	k.t.Helper()
	out, refused := ask[Out](k, subject, body)
	require.Nil(k.t, refused)
	return out
}

func (k *stack) refused(subject, body string) *events.Error {
	k.t.Helper()
	_, refused := ask[json.RawMessage](k, subject, body)
	require.NotNil(k.t, refused, "%s %s", subject, body)
	require.NotEmpty(k.t, refused.Message)
	return refused
}

// claim has a worker take tasks.
func (k *stack) claim(claim string, ids ...string) {
	k.t.Helper()
	stacktest.Eventually(k.t, patience, "claimed", func() bool {
		got, err := k.store.Claim(k.t.Context(), task.ClaimRequest{IDs: ids, Claim: claim, Worker: "w1", Lease: time.Minute})
		return err == nil && len(got) == len(ids)
	})
}

func TestRequestsAboutTasks(t *testing.T) {
	k := openStack(t)
	k.serve()

	require.Equal(t, events.Answer{ID: "a", Accepted: true}, must[events.Answer](k, events.APISubmit, `{"type":"email","id":"a","payload":{"x":1.0}}`))
	require.Equal(t, events.Answer{ID: "a", Accepted: true, Duplicate: true}, must[events.Answer](k, events.APISubmit, `{"id":"a","payload":{"x":1.0},"type":"email"}`))
	conflict := k.refused(events.APISubmit, `{"type":"email","id":"a","payload":{"x":1}}`)
	require.Equal(t, events.CodeIDConflict, conflict.Code)
	require.Equal(t, "a", conflict.Value)
	require.NotEmpty(t, conflict.Allowed)

	made := must[events.Answer](k, events.APISubmit, `{"type":"email"}`)
	require.Len(t, made.ID, 26)
	require.True(t, must[events.Answer](k, events.APISubmit, `{"type":"email","id":"`+made.ID+`"}`).Duplicate, "asked again with the id it was given")

	got := must[events.Task](k, events.APIGet, `{"id":"a"}`)
	require.Equal(t, "pending", got.State)
	require.Equal(t, "submitted", got.Reason)
	require.Equal(t, `{"x":1.0}`, string(got.Payload))
	require.Equal(t, "api", got.Source)
	require.Equal(t, events.CodeNotFound, k.refused(events.APIGet, `{"id":"nobody"}`).Code)

	history := must[events.HistoryReply](k, events.APIHistory, `{"id":"a"}`)
	require.Len(t, history.Entries, 1)
	require.Equal(t, "submitter/api", history.Entries[0].By)
	require.Equal(t, events.CodeNotFound, k.refused(events.APIHistory, `{"id":"nobody"}`).Code)
}

func TestCancelRequests(t *testing.T) {
	k := openStack(t)
	k.serve()
	told := make(chan events.Cancel, 1)
	stop, err := k.bus.SubscribeCancel(func(c events.Cancel) { told <- c })
	require.NoError(t, err)
	defer stop()
	require.NoError(t, k.bus.NC().Flush())

	for _, id := range []string{"waits", "runs", "done"} {
		must[events.Answer](k, events.APISubmit, `{"type":"email","id":"`+id+`"}`)
	}
	require.Equal(t, "cancelled", must[events.CancelReply](k, events.APICancel, `{"id":"waits","by":"ops@example.com"}`).Status)
	require.Equal(t, "operator/ops@example.com", must[events.HistoryReply](k, events.APIHistory, `{"id":"waits"}`).Entries[1].By)

	k.claim("c1", "runs", "done")
	require.Equal(t, "cancelling", must[events.CancelReply](k, events.APICancel, `{"id":"runs"}`).Status)
	select {
	case c := <-told:
		require.Equal(t, events.Cancel{ID: "runs", ExecutionID: "c1:runs"}, c)
	case <-time.After(patience):
		t.Fatal("the worker was not told")
	}

	done, err := k.store.Get(t.Context(), "done")
	require.NoError(t, err)
	_, err = k.store.Finish(t.Context(), []task.Outcome{{Owned: task.Owned{ID: "done", Claim: "c1"}, Worker: "w1", Kind: task.Succeeded, Task: done}})
	require.NoError(t, err)
	require.Equal(t, "finished", must[events.CancelReply](k, events.APICancel, `{"id":"done"}`).Status)
	require.Equal(t, "success", must[events.Task](k, events.APIGet, `{"id":"done"}`).State)

	require.Equal(t, events.CodeNotFound, k.refused(events.APICancel, `{"id":"nobody"}`).Code)
	require.Equal(t, "by", k.refused(events.APICancel, `{"id":"done","by":"a|b"}`).Field)
}

func TestRerunRequests(t *testing.T) {
	k := openStack(t)
	k.serve()
	must[events.Answer](k, events.APISubmit, `{"type":"email","id":"a","payload":7,"bizKey":"b"}`)
	require.Equal(t, events.CodeInvalid, k.refused(events.APIRerun, `{"id":"a"}`).Code, "it has not ended")
	must[events.CancelReply](k, events.APICancel, `{"id":"a"}`)

	again := must[events.Answer](k, events.APIRerun, `{"id":"a","by":"ops"}`)
	require.True(t, again.Accepted)
	got := must[events.Task](k, events.APIGet, `{"id":"`+again.ID+`"}`)
	require.Equal(t, "a", got.RerunOf)
	require.Equal(t, "pending", got.State)
	require.Equal(t, "7", string(got.Payload))
	require.Equal(t, "api/ops", got.Source)
	require.Equal(t, "cancelled", must[events.Task](k, events.APIGet, `{"id":"a"}`).State, "a terminal state never changes")

	twice := must[events.Answer](k, events.APIRerun, `{"id":"a","by":"ops"}`)
	require.Equal(t, events.Answer{ID: again.ID, Accepted: true, Duplicate: true}, twice)
	require.Equal(t, events.CodeNotFound, k.refused(events.APIRerun, `{"id":"nobody"}`).Code)

	must[events.CancelReply](k, events.APICancel, `{"id":"`+again.ID+`"}`)
	refused := k.refused(events.APIRerun, `{"id":"a","by":"ops"}`)
	require.Equal(t, events.CodeFinished, refused.Code, "the re-run has ended: nothing would run")
	require.Contains(t, refused.Message, "re-run "+again.ID)
	third := must[events.Answer](k, events.APIRerun, `{"id":"`+again.ID+`"}`)
	require.False(t, third.Duplicate)
	require.NotEqual(t, again.ID, third.ID)
}

func TestListRequests(t *testing.T) {
	k := openStack(t)
	k.serve()
	var bodies []string
	for i := range 25 {
		bodies = append(bodies, fmt.Sprintf(`{"type":"%s","id":"t%02d","payload":"secret"}`, []string{"email", "sms"}[i%2], i))
	}
	reply := must[events.SubmitManyReply](k, events.APISubmitMany, `{"tasks":[`+strings.Join(bodies, ",")+`]}`)
	require.Len(t, reply.Answers, 25)
	for i, a := range reply.Answers {
		require.Equal(t, events.Answer{ID: fmt.Sprintf("t%02d", i), Accepted: true}, a)
	}

	var ids []string
	for after := ""; ; {
		page := must[events.ListReply](k, events.APIList, fmt.Sprintf(`{"limit":10,"after":%q}`, after))
		for _, v := range page.Tasks {
			require.Nil(t, v.Payload)
			ids = append(ids, v.ID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	require.Len(t, ids, 25)
	require.Equal(t, "t24", ids[0])
	require.Equal(t, "t00", ids[24])
	require.Len(t, must[events.ListReply](k, events.APIList, `{"type":"sms","state":"pending"}`).Tasks, 12)
	require.Empty(t, must[events.ListReply](k, events.APIList, `{"state":"failed"}`).Tasks)
	require.Len(t, must[events.ListReply](k, events.APIList, ``+`{}`).Tasks, 25)

	for body, field := range map[string]string{
		`{"type":"a.b"}`: "type", `{"state":"done"}`: "state", `{"limit":1001}`: "limit", `{"limit":-1}`: "limit", `{"after":"a b"}`: "after", `{"page":2}`: "page",
	} {
		require.Equal(t, field, k.refused(events.APIList, body).Field, body)
	}
}

func TestSubmitManyRefusesOneByOne(t *testing.T) {
	k := openStack(t)
	k.serve()
	reply := must[events.SubmitManyReply](k, events.APISubmitMany, `{"tasks":[
		{"type":"email","id":"a"}, {"type":"email","priority":10}, {"type":"a.b"}, {"id":"x"}, {"type":"email","maxAttempt":1}, 7,
		{"type":"email","id":"a"}, {"type":"email","id":"a","payload":1}, {"type":"email","id":"b"}]}`)
	var outcome []string
	for _, a := range reply.Answers {
		switch {
		case a.Error != nil:
			require.False(t, a.Accepted)
			outcome = append(outcome, a.Error.Code+" "+a.Error.Field)
		case a.Duplicate:
			outcome = append(outcome, "duplicate")
		default:
			outcome = append(outcome, "accepted")
		}
	}
	require.Equal(t, []string{"accepted", "invalid priority", "invalid type", "invalid type", "invalid maxAttempt", "invalid body",
		"duplicate", "id_conflict id", "accepted"}, outcome)
	require.Len(t, k.tasks(), 2)

	require.Equal(t, "tasks", k.refused(events.APISubmitMany, `{"tasks":[]}`).Field)
	require.Equal(t, "tasks", k.refused(events.APISubmitMany, `{"tasks":[`+strings.Repeat(`{},`, 1000)+`{}]}`).Field)
	require.Equal(t, events.CodeInvalid, k.refused(events.APISubmitMany, `[]`).Code)
}

func TestBadRequests(t *testing.T) {
	k := openStack(t)
	k.serve()
	for name, c := range badBodies {
		if !strings.HasPrefix(c.body, "{") || name == "invalid JSON" {
			continue // not a body that a JSON client can send
		}
		body := `{"type":"email",` + c.body[1:]
		got := k.refused(events.APISubmit, body)
		require.Equal(t, c.code, got.Code, name)
		require.Equal(t, c.field, got.Field, name)
	}
	require.Equal(t, "type", k.refused(events.APISubmit, `{}`).Field)
	for _, subject := range []string{events.APIGet, events.APIHistory, events.APICancel, events.APIRerun} {
		for _, body := range []string{`{}`, `{"id":"a b"}`, `{"id":">"}`} {
			got := k.refused(subject, body)
			require.Equal(t, events.CodeInvalid, got.Code)
			require.Equal(t, "id", got.Field, "%s %s", subject, body)
		}
		require.Equal(t, "ident", k.refused(subject, `{"ident":"a"}`).Field)
	}
	require.Empty(t, k.tasks())
}

func TestRawRequests(t *testing.T) {
	k := openStack(t)
	k.serve()
	for body, code := range map[string]string{``: "invalid", `{`: "invalid", `null`: "invalid", "\xff": "invalid"} {
		m, err := k.bus.NC().Request(events.APISubmit, []byte(body), patience)
		require.NoError(t, err)
		require.Equal(t, "400", m.Header.Get("Nats-Service-Error-Code"))
		var e events.Error
		require.NoError(t, json.Unmarshal(m.Data, &e))
		require.Equal(t, code, e.Code)
	}
	m, err := k.bus.NC().Request(events.APIList, nil, patience)
	require.NoError(t, err)
	require.JSONEq(t, `{"tasks":[]}`, string(m.Data), "nothing asks for everything")
}

func TestRepliesThatDoNotFit(t *testing.T) {
	k := openStack(t)
	k.serve()
	half := strings.Repeat("x", 500_000)
	must[events.Answer](k, events.APISubmit, `{"type":"email","id":"large","payload":"`+half+`"}`)
	k.claim("c1", "large")
	got, err := k.store.Get(t.Context(), "large")
	require.NoError(t, err)
	errs, err := k.store.Finish(t.Context(), []task.Outcome{{Owned: task.Owned{ID: "large", Claim: "c1"}, Worker: "w1", Kind: task.Succeeded,
		Result: json.RawMessage(`"` + half + `"`), Task: got}})
	require.NoError(t, err)
	require.NoError(t, errs[0])

	v := must[events.Task](k, events.APIGet, `{"id":"large"}`)
	require.Equal(t, "success", v.State)
	require.Len(t, v.Payload, 500_002)
	require.Nil(t, v.Result)
	require.Equal(t, 500_002, v.ResultSize)
}

func TestStatsRequests(t *testing.T) {
	k := openStack(t)
	k.serve()
	empty := must[events.StatsReply](k, events.APIStats, `{}`)
	now, err := time.Parse(time.RFC3339, empty.Now)
	require.NoError(t, err)
	server, _, err := k.store.ServerTime(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, server, now, 10*time.Second)
	empty.Now = ""
	require.Equal(t, events.StatsReply{Workers: []events.Worker{}, Services: []events.Service{}, Attention: []string{
		"no cron is there: schedules do not fire",
		"no dispatcher is there: workers look for tasks in the database, so they start later",
		"no notifier is there: no events are published, and no dead letters written",
		"no reaper is there: tasks of workers that died stay with them, and nothing expires",
		"no submitter is there: submissions wait in NATS",
	}}, empty)
	for _, s := range []task.ServiceInfo{{ID: "cron/a", Service: "cron"}, {ID: "dispatcher/a", Service: "dispatcher", Leads: true}, {ID: "submitter/a", Service: "submitter"},
		{ID: "notifier/a", Service: "notifier", Conditions: []string{"events are made again from history"}}, {ID: "notifier/b", Service: "notifier", Leads: true},
		{ID: "reaper/a", Service: "reaper", Leads: true}} {
		require.NoError(t, k.store.BeatService(t.Context(), s))
	}
	require.NoError(t, k.store.BeatWorker(t.Context(), task.WorkerInfo{ID: "w1", Host: "h", PID: 7, Channel: "stable", Types: []string{"email"}, Slots: 4, Version: "v1"}))
	require.NoError(t, k.store.UpsertDeadLetters(t.Context(), []task.DeadTask{{ID: "x", Type: "email", Reason: task.ReasonExhausted}}))
	must[events.Answer](k, events.APISubmit, `{"type":"email","id":"due"}`)
	must[events.Answer](k, events.APISubmit, `{"type":"email","id":"later","delay":"1h"}`)
	stacktest.Eventually(t, patience, "a backlog", func() bool { return must[events.StatsReply](k, events.APIStats, `{}`).BacklogSeconds > 0 })
	stats := must[events.StatsReply](k, events.APIStats, `{}`)
	require.Equal(t, []string{"no cron leads: schedules do not fire", "notifier/a: events are made again from history"}, stats.Attention)
	require.Len(t, stats.Services, 6)
	require.Equal(t, events.Service{ID: "notifier/a", Service: "notifier", Conditions: []string{"events are made again from history"},
		SeenAt: stats.Services[2].SeenAt}, stats.Services[2])
	require.Less(t, stats.BacklogSeconds, 600.0)
	require.EqualValues(t, 1, stats.DeadLetters)
	require.Len(t, stats.Workers, 1)
	require.Equal(t, "w1", stats.Workers[0].ID)
	require.Equal(t, []string{"email"}, stats.Workers[0].Types)
	require.Equal(t, 4, stats.Workers[0].Slots)
	require.NotEmpty(t, stats.Workers[0].SeenAt)
}

func TestScheduleRequests(t *testing.T) {
	k := openStack(t)
	k.serve()
	put := func(body string) events.Schedule { return must[events.Schedule](k, events.APISchedulePut, body) }

	first := put(`{"name":"nightly","cron":"30 2 * * *","zone":"Europe/Berlin","task":{"type":"report","payload":{"n":1.0}}}`)
	require.NotEmpty(t, first.NextAt)
	require.Equal(t, "once", first.Misfire)
	require.Equal(t, first, must[events.Schedule](k, events.APIScheduleGet, `{"name":"nightly"}`))
	require.Equal(t, `{"n":1.0}`, string(first.Task.Payload))

	every := put(`{"name":"often","cron":"@every 90s","task":{"type":"report"}}`)
	edited := put(`{"name":"often","cron":"@every 90s","task":{"type":"report","priority":1}}`)
	require.Equal(t, every.NextAt, edited.NextAt, "an edit of the task does not move the slots")
	require.Equal(t, 1, *edited.Task.Priority)
	moved := put(`{"name":"often","cron":"@every 2h","task":{"type":"report"}}`)
	require.NotEqual(t, every.NextAt, moved.NextAt)

	var names []string
	for after := ""; ; {
		page := must[events.ScheduleList](k, events.APIScheduleList, fmt.Sprintf(`{"after":%q}`, after))
		for _, s := range page.Schedules {
			names = append(names, s.Name)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, []string{"nightly", "often"}, names)

	must[events.ScheduleRequest](k, events.APIScheduleDelete, `{"name":"often"}`)
	require.Equal(t, events.CodeNotFound, k.refused(events.APIScheduleDelete, `{"name":"often"}`).Code)
	require.Equal(t, events.CodeNotFound, k.refused(events.APIScheduleGet, `{"name":"often"}`).Code)

	for body, want := range map[string][2]string{
		`{"name":"x","cron":"TZ=0","task":{"type":"report"}}`:                                   {events.CodeInvalid, "cron"},
		`{"name":"x","cron":"@every 0s","task":{"type":"report"}}`:                              {events.CodeInvalid, "cron"},
		`{"name":"x","cron":"0 0 30 2 *","task":{"type":"report"}}`:                             {events.CodeInvalid, "cron"},
		`{"name":"x","cron":"* * * * *","zone":"../../etc/passwd","task":{"type":"r"}}`:         {events.CodeInvalid, "zone"},
		`{"name":"a.b","cron":"* * * * *","task":{"type":"report"}}`:                            {events.CodeInvalid, "name"},
		`{"name":"x","cron":"* * * * *","task":{"type":"a.b"}}`:                                 {events.CodeInvalid, "task.type"},
		`{"name":"x","cron":"* * * * *","task":{"type":"report","id":"fixed"}}`:                 {events.CodeInvalid, "task.id"},
		`{"name":"x","cron":"* * * * *","task":{"type":"report","maxAttempts":-1}}`:             {events.CodeInvalid, "task.maxAttempts"},
		`{"name":"x","cron":"* * * * *","task":{"type":"report","priorty":1}}`:                  {events.CodeInvalid, "task.priorty"},
		`{"name":"x","cron":"* * * * *","misfire":"every","task":{"type":"report"}}`:            {events.CodeInvalid, "misfire"},
		`{"name":"x","cron":"* * * * *","task":{"type":"report","unique":{"key":"a"}}}`:         {events.CodeUnsupported, "task.unique"},
		`{"name":"x","cron":"* * * * *","nextAt":"2026-01-01T00:00:00Z","task":{"type":"rep"}}`: {events.CodeInvalid, "nextAt"},
	} {
		got := k.refused(events.APISchedulePut, body)
		require.Equal(t, want, [2]string{got.Code, got.Field}, body)
	}
	require.Len(t, must[events.ScheduleList](k, events.APIScheduleList, `{}`).Schedules, 1)
}

// An edit of a schedule that cron moves at the same time must not undo the move.
func TestScheduleEditAgainstCron(t *testing.T) {
	k := openStack(t)
	k.serve()
	must[events.Schedule](k, events.APISchedulePut, `{"name":"n","cron":"@every 1s","task":{"type":"report"}}`)
	done := make(chan error, 1)
	go func() { // cron
		for range 50 {
			s, err := k.store.Schedule(t.Context(), "n")
			if err != nil {
				done <- err
				return
			}
			if _, err = k.store.Advance(t.Context(), []task.Advance{{Name: "n", Revision: s.Revision, From: s.NextAt, To: s.NextAt.Add(time.Second), LastAt: s.NextAt}}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	last := ""
	for i := 0; len(done) == 0; i++ {
		got, refused := ask[events.Schedule](k, events.APISchedulePut, fmt.Sprintf(`{"name":"n","cron":"@every 1s","task":{"type":"report","payload":%d}}`, i))
		if refused != nil {
			require.Equal(t, events.CodeUnavailable, refused.Code)
			continue
		}
		require.GreaterOrEqual(t, got.NextAt, last, "a slot that fired is due again")
		last = got.NextAt
	}
	require.NoError(t, <-done)
}
