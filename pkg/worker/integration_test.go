package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

type numbered struct {
	N int `json:"n"`
}

type doubled struct {
	Twice int `json:"twice"`
}

func TestTypedHandlerRunsTask(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	seen := make(chan Task, 1)
	Handle(w, "email", func(ctx context.Context, args numbered) (doubled, error) {
		mine, ok := TaskOf(ctx)
		require.True(t, ok)
		seen <- mine
		return doubled{2 * args.N}, nil
	})
	r.run(w)
	sent := r.submit("email", 1, func(k *task.Task) {
		k.Payload, k.Labels, k.BizKey, k.Echo = []byte(`{"n":21}`), map[string]string{"shop": "7"}, "order-7", `{"bizKey":"order-7","labels":{"shop":"7"}}`
	})[0]

	done := r.awaitState(sent.ID, task.Success)
	require.JSONEq(t, `{"twice":42}`, string(done.Result))
	require.Equal(t, []task.Reason{task.ReasonSubmitted, task.ReasonClaimed, task.ReasonSucceeded}, reasons(done))
	mine := <-seen
	require.Equal(t, sent.ID, mine.ID)
	require.Equal(t, "email", mine.Type)
	require.Equal(t, 1, mine.Attempt)
	require.Equal(t, done.ExecutionID(), mine.ExecutionID)
	require.Equal(t, map[string]string{"shop": "7"}, mine.Labels)
	require.Equal(t, "order-7", mine.BizKey)
	require.WithinDuration(t, time.Now().Add(time.Minute), mine.Deadline, 10*time.Second)
}

func TestManyTasksOverTwoWorkersRunOnceEach(t *testing.T) {
	r := newRig(t)
	const n = 300
	var runs [2]atomic.Int64
	for i := range runs {
		w := r.worker()
		Handle(w, "email", func(context.Context, numbered) (struct{}, error) {
			runs[i].Add(1)
			return struct{}{}, nil
		})
		r.run(w)
	}
	tasks := r.insert("email", n)
	for start := 0; start < n; start += 30 { // signals of 30, more than either worker has slots
		r.signal(tasks[start:min(n, start+30)]...)
	}
	for _, k := range tasks {
		done := r.awaitState(k.ID, task.Success)
		require.Equal(t, 1, done.Attempts)
		require.Nil(t, done.Result)
	}
	require.EqualValues(t, n, runs[0].Load()+runs[1].Load())
}

func TestOutcomesOfHandlers(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "odd", func(_ context.Context, k Task) (any, error) {
		switch strings.Trim(string(k.Payload), `"`) {
		case "error":
			return nil, ErrorCode("no_luck", errors.New("no\x00 luck\x1b[31m"))
		case "final":
			return nil, fmt.Errorf("wrapped: %w", NonRetryable(errors.New("never")))
		case "large":
			return strings.Repeat("x", task.MaxResult), nil
		case "channel":
			return make(chan int), nil
		case "panic":
			panic(panicking{})
		case "nil panic":
			panic(nil)
		case "map":
			noMap["a"] = 1
		case "deferred":
			defer func() { panic("in a deferred call") }()
		case "error panics":
			return nil, panicking{}
		case "unwrap panics":
			return nil, unwrapping{}
		case "goexit":
			runtime.Goexit()
		}
		return "innocent\u0000 😀", nil
	})
	r.run(w)
	once := func(payload string) func(*task.Task) {
		return func(k *task.Task) { k.Payload, k.MaxAttempts = fmt.Appendf(nil, "%q", payload), 1 }
	}
	for payload, want := range map[string]struct {
		reason task.Reason
		cause  task.Reason
		text   string
	}{
		"error":         {task.ReasonExhausted, task.ReasonError, `no\u0000 luck\u001b[31m`},
		"final":         {task.ReasonNonRetryable, task.ReasonError, "wrapped: never"},
		"large":         {task.ReasonRejectedResult, task.ReasonRejectedResult, "524290 bytes"},
		"channel":       {task.ReasonRejectedResult, task.ReasonRejectedResult, "chan int"},
		"panic":         {task.ReasonExhausted, task.ReasonPanic, "PANIC"},
		"nil panic":     {task.ReasonExhausted, task.ReasonPanic, "nil"},
		"map":           {task.ReasonExhausted, task.ReasonPanic, "nil map"},
		"deferred":      {task.ReasonExhausted, task.ReasonPanic, "in a deferred call"},
		"error panics":  {task.ReasonExhausted, task.ReasonError, "PANIC"},
		"unwrap panics": {task.ReasonExhausted, task.ReasonPanic, "broken chain"},
		"goexit":        {task.ReasonExhausted, task.ReasonPanic, "Goexit"},
	} {
		k := r.submit("odd", 1, once(payload))[0]
		done := r.awaitState(k.ID, task.Failed)
		require.Equal(t, want.reason, done.History[len(done.History)-1].Reason, payload)
		require.Equal(t, want.cause, done.LastError.Cause, payload)
		require.Contains(t, done.LastError.Message, want.text, payload)
		require.Equal(t, 1, done.Failures, payload)
		if want.cause == task.ReasonPanic && payload != "goexit" && payload != "unwrap panics" {
			require.Contains(t, done.LastError.Stack, "integration_test.go", payload)
		}
	}
	require.Equal(t, "no_luck", r.awaitState(r.submit("odd", 1, once("error"))[0].ID, task.Failed).LastError.Code)
	for _, k := range r.submit("odd", 9, once("innocent")) {
		require.JSONEq(t, `"innocent\u0000 😀"`, string(r.awaitState(k.ID, task.Success).Result))
	}
}

var noMap map[string]int

type panicking struct{}

func (panicking) Error() string { panic("in Error") }

type unwrapping struct{}

func (unwrapping) Error() string { return "fine" }
func (unwrapping) Unwrap() error { panic("broken chain") }

func TestPayloadThatCannotBeDecodedIsNotRetried(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	Handle(w, "email", func(context.Context, numbered) (struct{}, error) { return struct{}{}, nil })
	r.run(w)
	k := r.submit("email", 1, func(k *task.Task) { k.Payload = []byte(`{"n":"many"}`) })[0]
	done := r.awaitState(k.ID, task.Failed)
	require.Equal(t, task.ReasonNonRetryable, done.History[2].Reason)
	require.Equal(t, "bad_payload", done.LastError.Code)
	require.Contains(t, done.LastError.Message, "cannot be decoded into worker.numbered")
}

func TestSnoozeCostsNothingAndRetryAfterChoosesTheDelay(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "slow", func(_ context.Context, k Task) (any, error) {
		if k.Attempt > 1 {
			return k.Attempt, nil
		}
		if string(k.Payload) == `"snooze"` {
			return nil, Snooze(time.Hour)
		}
		return nil, RetryAfter(2*time.Hour, errors.New("busy"))
	})
	r.run(w)
	snoozed := r.submit("slow", 1, func(k *task.Task) { k.Payload = []byte(`"snooze"`) })[0]
	retried := r.submit("slow", 1)[0]
	for _, c := range []struct {
		id       string
		reason   task.Reason
		failures int
		after    time.Duration
	}{{snoozed.ID, task.ReasonSnoozed, 0, time.Hour}, {retried.ID, task.ReasonRetry, 1, 2 * time.Hour}} {
		k := r.await(c.id, "is put off", func(k *task.Task) bool { return k.State == task.Pending && k.Attempts == 1 })
		last := k.History[len(k.History)-1]
		require.Equal(t, c.reason, last.Reason)
		require.Equal(t, c.failures, k.Failures)
		require.Zero(t, k.Losses)
		require.WithinDuration(t, last.At.Add(c.after), k.ScheduledAt, 10*time.Millisecond)
	}
}

func TestRetryRunsUntilItSucceeds(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "flaky", func(_ context.Context, k Task) (any, error) {
		if k.Attempt < 3 {
			return nil, fmt.Errorf("attempt %d", k.Attempt)
		}
		return k.Failures, nil
	})
	r.run(w)
	k := r.submit("flaky", 1)[0]
	for attempt := 1; attempt < 3; attempt++ { // no dispatcher here: signal each retry, a little early
		k = r.await(k.ID, "waits for its retry", func(k *task.Task) bool { return k.State == task.Pending && k.Attempts == attempt })
		r.signal(k)
	}
	done := r.awaitState(k.ID, task.Success)
	require.Equal(t, "2", string(done.Result))
	require.Equal(t, []task.Reason{task.ReasonSubmitted, task.ReasonClaimed, task.ReasonRetry, task.ReasonClaimed, task.ReasonRetry,
		task.ReasonClaimed, task.ReasonSucceeded}, reasons(done))
}

func TestTimeoutIsReportedAtOnceAndHoldsTheSlotOfADeafHandler(t *testing.T) {
	r := newRig(t)
	w := r.worker(func(o *Options) { o.Slots = 1 })
	g := newGate()
	causes := make(chan error, 1)
	HandleFunc(w, "deaf", func(ctx context.Context, k Task) (any, error) {
		g.entered <- k.ExecutionID
		<-g.open // deaf to ctx
		causes <- context.Cause(ctx)
		return "late", nil
	}, Concurrency(1))
	r.run(w)
	k := r.submit("deaf", 1, func(k *task.Task) { k.Timeout, k.MaxAttempts = 200*time.Millisecond, 1 })[0]
	other := r.submit("deaf", 1)[0]
	g.awaitEntry(t)
	failed := r.awaitState(k.ID, task.Failed)
	require.Equal(t, task.ReasonTimeout, failed.LastError.Cause)
	require.Less(t, failed.FinishedAt.Sub(failed.StartedAt), task.TimeoutGrace, "the worker reported it, not the reaper")
	require.ErrorContains(t, w.Health(), "all 1 slots")
	require.Equal(t, task.Pending, r.get(other.ID).State, "the slot is held")

	close(g.open)
	require.ErrorIs(t, <-causes, ErrTimeout)
	r.awaitState(other.ID, task.Success)
	require.NoError(t, w.Health())
	again := r.get(k.ID)
	require.Equal(t, task.Failed, again.State, "a late return changes nothing")
	require.Nil(t, again.Result)
}

func TestCancelOfARunningTask(t *testing.T) {
	for name, tell := range map[string]bool{"by NATS": true, "by heartbeat": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w := r.worker(func(o *Options) {
				if tell {
					o.Lease, o.Beat = time.Minute, 30*time.Second // too seldom to be the reason
				}
			})
			g := newGate()
			HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) {
				err := g.pass(ctx)
				switch {
				case !errors.Is(context.Cause(ctx), ErrCancelled):
					return nil, fmt.Errorf("cause %w", context.Cause(ctx))
				case string(k.Payload) == `"nil"`:
					return "late success", nil
				case string(k.Payload) == `"own"`:
					return nil, errors.New("own error")
				case string(k.Payload) == `"panic"`:
					panic("on the way out")
				}
				return nil, err
			})
			r.run(w)
			for _, payload := range []string{`"ctx"`, `"nil"`, `"own"`, `"panic"`} {
				k := r.submit("long", 1, func(k *task.Task) { k.Payload = []byte(payload) })[0]
				execution := g.awaitEntry(t)
				status, _, err := r.store.Cancel(t.Context(), k.ID, "test")
				require.NoError(t, err)
				require.Equal(t, task.CancelAsked, status)
				if tell {
					require.NoError(t, r.bus.PublishCancel(events.Cancel{ID: k.ID, ExecutionID: "another:" + k.ID}))
					require.NoError(t, r.bus.PublishCancel(events.Cancel{ID: k.ID, ExecutionID: execution}))
				}
				done := r.awaitState(k.ID, task.Cancelled)
				require.Equal(t, 1, done.Attempts)
				require.Zero(t, done.Failures, payload)
				require.Contains(t, done.History[len(done.History)-1].By, w.ID(), payload)
			}
		})
	}
}

func TestCancelMessageWithoutACancelCostsNothing(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	g := newGate()
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) { return nil, g.pass(ctx) })
	r.run(w)
	k := r.submit("long", 1)[0]
	execution := g.awaitEntry(t)
	require.NoError(t, r.bus.PublishCancel(events.Cancel{ID: k.ID, ExecutionID: execution}))
	back := r.await(k.ID, "is handed back", func(k *task.Task) bool { return k.State == task.Pending })
	require.Zero(t, back.Failures+back.Losses)
	close(g.open)
	r.signal(back)
	r.awaitState(k.ID, task.Success)
}

func TestSuccessBeforeACancelStands(t *testing.T) {
	r := newRig(t)
	w := r.worker(func(o *Options) { o.Lease, o.Beat = time.Minute, 30*time.Second })
	g := newGate()
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) { return "done", g.pass(ctx) })
	r.run(w)
	k := r.submit("long", 1)[0]
	g.awaitEntry(t)
	_, _, err := r.store.Cancel(t.Context(), k.ID, "test") // the worker does not hear of it
	require.NoError(t, err)
	close(g.open)
	require.Equal(t, `"done"`, string(r.awaitState(k.ID, task.Success).Result))
}

func TestLostLeaseCancelsTheHandlerAndItsReportChangesNothing(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	g := newGate()
	causes := make(chan error, 1)
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) {
		if k.Attempt > 1 {
			return "second", nil
		}
		_ = g.pass(ctx)
		causes <- context.Cause(ctx)
		return "first", nil
	})
	r.run(w)
	k := r.submit("long", 1)[0]
	g.awaitEntry(t)
	r.reap(k.ID)
	require.ErrorIs(t, <-causes, ErrLeaseLost)
	r.signal(r.get(k.ID))
	done := r.awaitState(k.ID, task.Success)
	require.Equal(t, `"second"`, string(done.Result))
	require.Equal(t, 1, done.Losses)
	require.Equal(t, []task.Reason{task.ReasonSubmitted, task.ReasonClaimed, task.ReasonLeaseExpired, task.ReasonClaimed, task.ReasonSucceeded}, reasons(done))
}

func TestReportAfterALostLeaseIsRefused(t *testing.T) {
	r := newRig(t)
	metrics := prometheus.NewRegistry()
	w := r.worker(func(o *Options) { o.Lease, o.Beat, o.Registerer = time.Minute, 30*time.Second, metrics }) // no beat tells it of the loss
	g := newGate()
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) {
		if k.Attempt > 1 {
			return "second", nil
		}
		return "first", g.pass(ctx)
	}, Concurrency(2))
	r.run(w)
	k := r.submit("long", 1)[0]
	g.awaitEntry(t)
	r.reap(k.ID)
	r.signal(r.get(k.ID))
	r.awaitState(k.ID, task.Success)
	close(g.open) // the first one reports now
	stacktest.Eventually(t, patience, "the report is refused", func() bool { return counted(t, metrics, "ax_worker_lease_lost_total") == 1 })
	require.Equal(t, `"second"`, string(r.get(k.ID).Result))
}

func TestProgress(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	g := newGate()
	Handle(w, "long", func(ctx context.Context, _ numbered) (struct{}, error) {
		for i := range 100 {
			if err := Progress(ctx, map[string]int{"percent": i}); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, g.pass(ctx)
	})
	r.run(w)
	k := r.submit("long", 1)[0]
	r.await(k.ID, "shows the newest progress", func(k *task.Task) bool { return string(k.Progress) == `{"percent":99}` })
	close(g.open)
	r.awaitState(k.ID, task.Success)
	require.ErrorIs(t, Progress(t.Context(), 1), ErrNoTask)
}

func TestUnknownTypeAndOtherChannelAreNeverConsumed(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "known", func(context.Context, Task) (any, error) { return "ran", nil })
	r.run(w)
	strangers := append(r.insert("unknown", 2), r.insert("known", 1, func(k *task.Task) { k.Channel = task.ChannelCanary })...)
	known := r.insert("known", 1)[0]
	r.signal(known, strangers[0], strangers[1], strangers[2]) // signals that lie
	r.awaitState(known.ID, task.Success)
	for _, s := range strangers {
		k := r.await(s.ID, "was handed back", func(k *task.Task) bool { return k.State == task.Pending && k.Seq == 3 })
		require.Equal(t, []task.Reason{task.ReasonSubmitted, task.ReasonClaimed, task.ReasonReleased}, reasons(k))
		require.Zero(t, k.Failures+k.Losses)
	}
	running, claiming := w.engine.intake.busy()
	require.Zero(t, running+claiming)
}
