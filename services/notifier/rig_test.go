package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.ServiceMain(m, main) }

// rig is a database and a NATS, with what a test does to tasks.
type rig struct {
	t    *testing.T
	env  []string
	db   *mongostore.Store
	bus  *natsbus.Bus
	nats *localstack.NATSProcess
}

func newRig(t *testing.T) *rig {
	return newRigOn(t, stacktest.Mongo(t).URI(), stacktest.Database(t))
}

func newRigOn(t *testing.T, uri, database string) *rig {
	t.Helper()
	r := &rig{t: t, nats: stacktest.NATS(t)}
	r.env = []string{
		"AX_MONGO_URI=" + uri, "AX_MONGO_DB=" + database, "AX_NATS_URL=" + r.nats.URL(),
		"AX_NOTIFIER_LOCK_TTL=2s", "AX_NOTIFIER_SAVE_EVERY=200ms", "AX_NOTIFIER_SWEEP_EVERY=500ms",
	}
	var err error
	r.db, err = mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: database})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.db.Close(context.Background())) })
	require.NoError(t, r.db.EnsureIndexes(t.Context()))
	r.bus, err = natsbus.Connect(natsbus.Options{URL: r.nats.URL()})
	require.NoError(t, err)
	t.Cleanup(r.bus.Close)
	_, err = r.bus.EnsureStreams(t.Context())
	require.NoError(t, err)
	return r
}

// notifier runs the service as a process and waits until it is ready.
func (r *rig) notifier() *localstack.Service {
	r.t.Helper()
	return stacktest.Service(r.t, service, r.env...)
}

// submit stores n tasks under ids that begin with name. The last digit decides their fate, see live.
func (r *rig) submit(name string, n int) (ids []string) {
	r.t.Helper()
	now, _, err := r.db.Now()
	require.NoError(r.t, err)
	tasks := make([]*task.Task, n)
	for i := range tasks {
		base, attempts := "100ms", 2
		sub := events.Submit{
			ID: fmt.Sprintf("%s-%05d", name, i), Payload: json.RawMessage(`{"n":1}`), MaxAttempts: &attempts, BizKey: "order|7",
			Retry: &events.Retry{Base: &base}, Labels: map[string]string{"batch": name},
		}
		if i%10 == 7 {
			sub.OnExhausted = task.Ignore
		}
		tasks[i], err = intake.Build(&sub, intake.Origin{Type: "email", Source: intake.SourceAPI, Now: now})
		require.NoError(r.t, err)
		ids = append(ids, tasks[i].ID)
	}
	_, err = r.db.Insert(r.t.Context(), tasks)
	require.NoError(r.t, err)
	return ids
}

// live takes tasks through their lives, as workers and others do: most succeed, some are cancelled, fail once, fail for good,
// or are used up.
func (r *rig) live(ids []string) {
	r.t.Helper()
	open := slices.Clone(ids) // it grows, and the caller's may go on behind
	for round := 0; len(open) > 0; round++ {
		require.Less(r.t, round, 1000)
		claim := events.NewToken()
		var part []string
		part, open = open[:min(len(open), 100)], open[min(len(open), 100):]
		claimed, err := r.db.Claim(r.t.Context(), task.ClaimRequest{IDs: part, Claim: claim, Worker: "w1", Lease: time.Minute})
		require.NoError(r.t, err)
		var outcomes []task.Outcome
		for _, t := range claimed {
			o := task.Outcome{Owned: task.Owned{ID: t.ID, Claim: claim}, Worker: "w1", Kind: task.Succeeded, Result: json.RawMessage(`{"sent":true}`), Task: t}
			failure := &task.Error{Message: "no answer", Code: "smtp", Cause: task.ReasonError}
			switch t.ID[len(t.ID)-1] {
			case '1':
				_, _, err := r.db.Cancel(r.t.Context(), t.ID, "somebody")
				require.NoError(r.t, err)
				o.Kind, o.Result = task.CancelledByRequest, nil
			case '2', '7': // used up
				o.Kind, o.Result, o.Error = task.FailedAttempt, nil, failure
			case '3':
				o.Kind, o.Result, o.Error = task.FailedForGood, nil, failure
			case '4':
				if t.Failures == 0 {
					o.Kind, o.Result, o.Error = task.FailedAttempt, nil, failure
				}
			}
			outcomes = append(outcomes, o)
		}
		answers, err := r.db.Finish(r.t.Context(), outcomes)
		require.NoError(r.t, err)
		for _, a := range answers {
			require.NoError(r.t, a)
		}
		for _, id := range part { // those that are to be tried again, or were not due yet
			if t, err := r.db.Get(r.t.Context(), id); err == nil && !t.State.Terminal() {
				open = append(open, id)
			}
		}
	}
}

// tape collects the whole event stream from its beginning.
type tape struct {
	r      *rig
	mu     sync.Mutex
	events []events.Event
	ids    []string // message ids, in the same order
	bodies map[string]string
	failed error
}

// record reads AX_EVENT until the test ends, or stop is called.
func (r *rig) record() (tp *tape, stop func()) {
	r.t.Helper()
	tp = &tape{r: r, bodies: map[string]string{}}
	consumer, err := r.bus.JS().OrderedConsumer(r.t.Context(), events.StreamEvent, jetstream.OrderedConsumerConfig{})
	require.NoError(r.t, err)
	reading, err := consumer.Consume(tp.take)
	require.NoError(r.t, err)
	stop = sync.OnceFunc(func() {
		reading.Stop()
		<-reading.Closed()
	})
	r.t.Cleanup(stop)
	return tp, stop
}

func (tp *tape) take(m jetstream.Msg) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	e, err := events.DecodeEvent(m.Data())
	id := m.Headers().Get(events.HeaderMsgID)
	switch body, there := tp.bodies[id]; {
	case err != nil:
		tp.failed = err
	case m.Subject() != events.SubjectEvent(e.Type, e.State) || id != fmt.Sprintf("%s:%d", e.ID, e.Seq):
		tp.failed = fmt.Errorf("event %s:%d has id %s and subject %s", e.ID, e.Seq, id, m.Subject())
	case there && body != string(m.Data()) && e.ScheduledAt != "":
		tp.failed = fmt.Errorf("two messages %s say different things: %s and %s", id, body, m.Data())
	}
	tp.bodies[id] = string(m.Data())
	tp.events, tp.ids = append(tp.events, e), append(tp.ids, id)
}

// awaitAll waits until the last change of each task is on the tape, and then asserts that a subscriber who ignores seq <= the
// last it saw had every change of every task in order, each saying what the task's history says.
func (tp *tape) awaitAll(within time.Duration, ids ...string) {
	tp.r.t.Helper()
	want := map[string]*task.Task{}
	for _, id := range ids {
		t, err := tp.r.db.Get(tp.r.t.Context(), id)
		require.NoError(tp.r.t, err)
		want[id] = t
	}
	stacktest.Eventually(tp.r.t, within, "all changes are published", func() bool {
		tp.mu.Lock()
		defer tp.mu.Unlock()
		for id, t := range want {
			if _, ok := tp.bodies[fmt.Sprintf("%s:%d", id, t.Seq)]; !ok {
				return false
			}
		}
		return true
	})
	tp.mu.Lock()
	defer tp.mu.Unlock()
	require.NoError(tp.r.t, tp.failed)
	last := map[string]int64{}
	for _, e := range tp.events {
		t := want[e.ID]
		if t == nil || e.Seq <= last[e.ID] {
			continue
		}
		require.Equal(tp.r.t, last[e.ID]+1, e.Seq, "task %s has a gap", e.ID)
		last[e.ID] = e.Seq
		h := t.History[e.Seq-1]
		require.Equal(tp.r.t, []any{h.Seq, string(h.From), string(h.To), string(h.Reason), h.Attempt, task.ExecutionID(h.Claim, e.ID), events.FormatTime(h.At), h.By},
			[]any{e.Seq, e.From, e.State, e.Reason, e.Attempt, e.ExecutionID, e.At, e.By})
		require.Equal(tp.r.t, "order|7", e.BizKey)
		require.Equal(tp.r.t, t.Labels, e.Labels)
		if h.Error != nil && h.Reason != task.ReasonCancelled {
			require.Equal(tp.r.t, &events.EventError{Message: h.Error.Message, Code: h.Error.Code, Cause: string(h.Error.Cause)}, e.Error)
		} else {
			require.Nil(tp.r.t, e.Error)
		}
		if h.To == task.Success {
			require.Equal(tp.r.t, t.Result, e.Result)
		}
	}
	for id, t := range want {
		require.Equal(tp.r.t, t.Seq, last[id], "task %s", id)
	}
}

// repeats counts the messages that say again what an earlier one of the same id said.
func (tp *tape) repeats() int {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return len(tp.ids) - len(tp.bodies)
}

// requireDeadLetters asserts that exactly those of the tasks have one that failed and wanted one, with every attempt's error. A
// dead letter is written after the events of its batch are published.
func (r *rig) requireDeadLetters(ids ...string) {
	r.t.Helper()
	var without []string
	for _, id := range ids {
		t, err := r.db.Get(r.t.Context(), id)
		require.NoError(r.t, err)
		if t.State != task.Failed || t.OnExhausted == task.Ignore {
			without = append(without, id)
			continue
		}
		var d task.DeadTask
		stacktest.Eventually(r.t, patience, id+" has a dead letter", func() bool {
			d, err = r.db.DeadLetter(r.t.Context(), id)
			return !errors.Is(err, task.ErrNotFound)
		})
		require.NoError(r.t, err, id)
		require.Equal(r.t, t.History[len(t.History)-1].Reason, d.Reason)
		require.Len(r.t, d.Errors, t.Failures)
		require.Equal(r.t, t.LastError, d.LastError)
	}
	for _, id := range without {
		_, err := r.db.DeadLetter(r.t.Context(), id)
		require.ErrorIs(r.t, err, task.ErrNotFound, id)
	}
}
