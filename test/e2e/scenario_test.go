package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Tests of whole systems that rows of docs/scenarios.md ask for, by their numbers.

func TestScenario01EveryAttemptStartsInItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: 2, slots: 2})
	const slack = 2500 * time.Millisecond // a sweep of the database is 5 s away; nothing here may need one
	retried := client.NewTask(workType, work{RunMs: 1, Fail: 3}, client.MaxAttempts(5))
	_, err := w.client.Submit(t.Context(), retried)
	require.NoError(t, err)

	doomed := w.submit(1, work{RunMs: 8_000})[0]
	var on *localstack.Service
	stacktest.Eventually(t, late, "it runs", func() bool {
		one, err := w.store.Get(t.Context(), doomed)
		require.NoError(t, err)
		for _, worker := range w.workers {
			if one.State == task.Running && one.WorkerID == worker.Name() {
				on = worker
			}
		}
		return on != nil
	})
	<-time.After(time.Second) // it dies in the middle of its work, not at its beginning
	w.killWorker(on)
	w.awaitEnds([]string{retried.ID(), doomed}, time.Minute+30*time.Second)

	again, err := w.client.Rerun(t.Context(), retried.ID()) // within the two minutes in which NATS knows the ids of messages
	require.NoError(t, err)
	twice, err := w.client.Rerun(t.Context(), doomed)
	require.NoError(t, err)
	_, err = w.client.Cancel(t.Context(), twice)
	require.NoError(t, err)
	w.awaitEnds([]string{again, twice}, time.Minute)

	runs := byTask(w.executions())
	requireAttempts := func(id string, waits ...time.Duration) {
		require.Len(t, runs[id], len(waits)+1, id)
		for i, run := range runs[id] {
			require.Equal(t, i+1, run.Attempt, "%s: each attempt is one that a handler saw", id)
			if i > 0 {
				require.Less(t, time.Duration(run.At-runs[id][i-1].End), waits[i-1]+slack, "attempt %d of %s", i+1, id)
			}
		}
		one, err := w.store.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, len(waits)+1, one.Attempts)
	}
	backoffs := []time.Duration{1500 * time.Millisecond, 3 * time.Second, 6 * time.Second} // 1, 2 and 4 s, and half of it at random
	requireAttempts(retried.ID(), backoffs...)
	requireAttempts(again, backoffs...)
	requireAttempts(doomed, w.lease+w.lease/5)
}

func TestScenario04EverybodyWorksOnAfterNATSWasAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	notReady := func(name string) func() bool {
		return func() bool { return !stacktest.Ready(t, w.system.Service(name)) }
	}
	outage := func(times int, lasts time.Duration) {
		for range times {
			require.NoError(t, w.nats.Kill())
			if lasts > 5*time.Second {
				for _, name := range []string{"submitter", "dispatcher", "notifier"} { // the others do without NATS
					stacktest.Eventually(t, late, name+" is not ready", notReady(name))
				}
			}
			<-time.After(lasts) // how long it lasts is what this is about
			require.NoError(t, w.nats.Start(t.Context()))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, w.system.WaitReady(ctx))
		stacktest.Eventually(t, late, "the client has a connection again", func() bool {
			_, err := w.client.Get(ctx, "no-such-task")
			refused, ok := errors.AsType[*events.Error](err)
			return ok && refused.Code == events.CodeNotFound
		})
		w.requireAllSucceeded(w.awaitEnds(w.submit(100, work{RunMs: 5}), 30*time.Second))
	}
	outage(1, time.Second)
	outage(5, 200*time.Millisecond)
	busy := w.submit(200, work{RunMs: 200})
	outage(1, 10*time.Second)
	w.requireAllSucceeded(w.awaitEnds(busy, time.Minute))
}

func TestScenario08ACancelIsTrue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{slots: 100})
	const callers, each = 40, 50
	type told struct {
		status string
		at     int64 // by the ledger's clock, when the answer came
	}
	answers := map[string]told{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				one := client.NewTask(workType, work{RunMs: 50})
				_, err := w.client.Submit(t.Context(), one)
				if err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				<-time.After(rand.N(60 * time.Millisecond))
				status, err := w.client.Cancel(t.Context(), one.ID())
				if err != nil {
					t.Errorf("cancel: %v", err)
					return
				}
				mu.Lock()
				answers[one.ID()] = told{status, ledger.Now()}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	require.Len(t, answers, callers*each)
	ids := make([]string, 0, len(answers))
	for id := range answers {
		ids = append(ids, id)
	}
	ended := w.awaitEnds(ids, 2*time.Minute)
	runs := byTask(w.executions())
	counts := map[string]int{}
	for id, a := range answers {
		counts[a.status]++
		state := ended[id].State
		switch a.status {
		case string(task.CancelDone):
			require.Equal(t, task.Cancelled, state, id)
		case string(task.CancelTooLate):
			require.Equal(t, task.Success, state, id)
		case string(task.CancelAsked):
			require.Contains(t, []task.State{task.Cancelled, task.Success}, state, id) // it may end before it hears
		default:
			t.Fatalf("%s is answered %q", id, a.status)
		}
		for _, r := range runs[id] {
			require.False(t, a.status == string(task.CancelDone) && r.At > a.at, "%s began after it was cancelled", id)
			require.False(t, state == task.Cancelled && r.Result == "ok" && r.At > a.at, "%s ran to its end after the answer and is cancelled", id)
		}
	}
	t.Logf("answers: %v", counts)
	require.Len(t, counts, 3, "each answer was given: %v", counts)
}

func TestScenario10RunsThatEndBadlyBlockNoSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: 1})
	once := 1
	put := func(name, payload string) {
		_, err := w.client.PutSchedule(t.Context(), events.Schedule{Name: name, Cron: "@every 1s",
			Task: events.SubmitRequest{Type: workType, Submit: events.Submit{Payload: []byte(payload), MaxAttempts: &once}}})
		require.NoError(t, err)
	}
	began := time.Now()
	put("fails", `{"fail":1}`)
	put("long", `{"runMs":60000}`)
	cancelled := ""
	stacktest.Eventually(t, late, "a long run goes on", func() bool {
		for _, slot := range w.ticks("long") {
			id := "cron:long:" + slot.Format(time.RFC3339)
			if one, err := w.store.Get(t.Context(), id); err == nil && one.State == task.Running {
				cancelled = id
				return true
			}
		}
		return false
	})
	_, err := w.client.Cancel(t.Context(), cancelled)
	require.NoError(t, err)
	for _, name := range []string{"fails", "long"} {
		before := len(w.ticks(name))
		stacktest.Eventually(t, time.Minute, name+" goes on firing", func() bool { return len(w.ticks(name)) >= before+6 })
		require.NoError(t, w.client.DeleteSchedule(t.Context(), name))
		requireSlots(t, w.ticks(name), time.Second, time.Since(began))
	}
	var failed []string
	for _, slot := range w.ticks("fails") {
		failed = append(failed, "cron:fails:"+slot.Format(time.RFC3339))
	}
	for id, one := range w.awaitEnds(failed, late) {
		require.Equal(t, task.Failed, one.State, id)
	}
	require.Equal(t, task.Cancelled, w.awaitEnds([]string{cancelled}, late)[cancelled].State)
	for _, slot := range w.ticks("long") {
		_, err := w.client.Cancel(t.Context(), "cron:long:"+slot.Format(time.RFC3339))
		require.NoError(t, err)
	}
}

func TestScenario14AnOldWorkerLeavesNewTypesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const newType = "other"
	old := w.startWorker(ctx, worldOptions{})
	newer := w.startWorker(ctx, worldOptions{}, "LEDGER_TYPES="+workType+","+newType)
	_, err := w.client.PutSchedule(ctx, events.Schedule{Name: "repeats", Cron: "@every 1s", Task: events.SubmitRequest{Type: newType}})
	require.NoError(t, err)
	var ids []string
	for range 5 {
		ids = append(ids, w.submitOf(newType, 100, work{RunMs: 10})...)
		again := []*localstack.Service{old, newer}[rand.N(2)]
		require.NoError(t, again.Stop(20*time.Second))
		require.NoError(t, again.Start(ctx))
	}
	require.NoError(t, w.client.DeleteSchedule(ctx, "repeats"))
	for _, slot := range w.ticks("repeats") {
		ids = append(ids, "cron:repeats:"+slot.Format(time.RFC3339))
	}
	w.requireAllSucceeded(w.awaitEnds(ids, time.Minute))

	require.NoError(t, newer.Stop(20*time.Second))
	waiting := w.submitOf(newType, 5, work{RunMs: 10})
	w.awaitAttention(t, "the oldest due task is of type "+newType+", and no worker takes that type")
	for _, id := range waiting {
		one, err := w.store.Get(ctx, id)
		require.NoError(t, err)
		require.Equal(t, task.Pending, one.State)
		require.Zero(t, one.Attempts)
	}
	require.NoError(t, newer.Start(ctx))
	w.requireAllSucceeded(w.awaitEnds(waiting, time.Minute))
	for _, r := range w.executions() {
		require.Equal(t, newer.Name(), r.Worker, "%s ran on a worker that does not know its type", r.Task)
	}
}

func TestScenario22APoisonousTaskIsGivenUpAndItsNeighboursAreNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{slots: 30, lease: 2 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	innocents := w.submit(50, work{RunMs: 300}, client.MaxAttempts(1))
	poison := w.submit(1, work{Exit: true}, client.MaxAttempts(1))[0]
	var end *task.Task
	stacktest.Eventually(t, 2*time.Minute, "the poisonous task is given up", func() bool {
		for _, s := range w.workers {
			if _, noted := w.deaths[s.Name()]; !noted && !s.Running() {
				w.deaths[s.Name()] = ledger.Now()
				w.startWorker(ctx, worldOptions{slots: 30})
			}
		}
		one, err := w.store.Get(ctx, poison)
		require.NoError(t, err)
		end = one
		return one.State.Terminal()
	})
	require.Equal(t, []any{task.Failed, task.ReasonWorkerLost, 0}, []any{end.State, end.History[len(end.History)-1].Reason, end.Failures})
	require.Equal(t, end.MaxLosses+1, end.Losses)
	require.Len(t, w.deaths, end.Losses, "each loss is a worker")
	w.requireAllSucceeded(w.awaitEnds(innocents, time.Minute))
}
