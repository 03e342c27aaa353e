package worker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

func TestStopHandsUnfinishedTasksBackWithoutCost(t *testing.T) {
	r := newRig(t)
	w := r.worker(func(o *Options) { o.SoftStop = time.Millisecond })
	g := newGate()
	causes := make(chan error, 10)
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) {
		err := g.pass(ctx)
		causes <- context.Cause(ctx)
		switch string(k.Payload) {
		case `"own"`:
			return nil, errors.New("connection closed") // what a library makes of an ended context
		case `"success"`:
			return "finished all the same", nil
		case `"final"`:
			return nil, NonRetryable(errors.New("hopeless"))
		case `"snooze"`:
			return nil, Snooze(time.Hour)
		case `"panic"`:
			panic("on the way out")
		}
		return nil, err
	})
	stop := r.run(w)
	want := map[string]task.Reason{`"ctx"`: task.ReasonReleased, `"own"`: task.ReasonReleased, `"success"`: task.ReasonSucceeded,
		`"final"`: task.ReasonNonRetryable, `"snooze"`: task.ReasonSnoozed, `"panic"`: task.ReasonRetry}
	ids := make(map[string]string)
	for payload := range want {
		ids[payload] = r.submit("long", 1, func(k *task.Task) { k.Payload = []byte(payload) })[0].ID
		g.awaitEntry(t)
	}
	workers, err := r.store.Workers(t.Context())
	require.NoError(t, err)
	require.Len(t, workers, 1)
	require.Equal(t, w.ID(), workers[0].ID)
	require.Equal(t, []string{"long"}, workers[0].Types)
	require.Equal(t, 10, workers[0].Slots)

	begun := time.Now()
	require.NoError(t, stop())
	require.Less(t, time.Since(begun), 5*time.Second)
	for range want {
		require.ErrorIs(t, <-causes, ErrShutdown)
	}
	for payload, reason := range want {
		k := r.get(ids[payload]) // recorded before Run returned
		last := k.History[len(k.History)-1]
		require.Equal(t, reason, last.Reason, payload)
		if reason == task.ReasonReleased {
			require.Equal(t, task.Pending, k.State)
			require.Zero(t, k.Failures+k.Losses, payload)
		}
	}
	workers, err = r.store.Workers(t.Context())
	require.NoError(t, err)
	require.Empty(t, workers)

	// Another worker goes on at once, not after the lease.
	second := r.worker()
	HandleFunc(second, "long", func(context.Context, Task) (any, error) { return "elsewhere", nil })
	r.run(second)
	r.signal(r.get(ids[`"ctx"`]))
	require.Equal(t, `"elsewhere"`, string(r.awaitState(ids[`"ctx"`], task.Success).Result))
}

// At most once: a handler that had begun may have done half of its work, so that its task must not be run again.
func TestStopLeavesTasksThatMayLoseNoWorkerToTheirLeases(t *testing.T) {
	r := newRig(t)
	w := r.worker(func(o *Options) { o.SoftStop = time.Millisecond })
	g := newGate()
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) {
		err := g.pass(ctx)
		if string(k.Payload) == `"own"` {
			return nil, errors.New("connection closed")
		}
		return nil, err
	})
	stop := r.run(w)
	var ids []string
	for _, payload := range []string{`"ctx"`, `"own"`} {
		ids = append(ids, r.submit("long", 1, func(k *task.Task) { k.Payload, k.MaxLosses = []byte(payload), 0 })[0].ID)
		g.awaitEntry(t)
	}
	require.NoError(t, stop())
	for _, id := range ids {
		k := r.get(id)
		require.Equal(t, task.Running, k.State, "not handed back: %v", reasons(k))
		r.reap(id)
		require.Equal(t, task.Failed, r.get(id).State)
		require.Equal(t, task.ReasonWorkerLost, r.get(id).History[len(k.History)].Reason)
	}
}

// A claim may have won its tasks a moment ago: a handler that had not begun did no half of its work.
func TestStopReleasesWhatHadNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		b := startEngine(t, s, map[string]Handler{"email": func(context.Context, Task) (any, error) { panic("it must not begin") }})
		b.runs.shutdown()
		k := s.add("email", 1, func(k *task.Task) { k.MaxLosses = 0 })[0]
		b.bus.signal(k)
		time.Sleep(time.Second)
		got := s.get(k.ID)
		require.Equal(t, []task.Reason{task.ReasonClaimed, task.ReasonReleased}, reasons(&got)[:2])
		require.NoError(t, b.stop())
	})
}

func TestStopLetsHandlersFinishSoftly(t *testing.T) {
	r := newRig(t)
	w := r.worker(func(o *Options) { o.StopTimeout, o.SoftStop = 20*time.Second, 15*time.Second })
	g := newGate()
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) { return nil, g.pass(ctx) })
	stop := r.run(w)
	k := r.submit("long", 1)[0]
	g.awaitEntry(t)
	result := make(chan error, 1)
	go func() { result <- stop() }()
	stacktest.Eventually(t, patience, "the worker takes nothing new", func() bool { return w.engine.stopping.Load() })
	after := r.submit("long", 1)[0]
	close(g.open)
	require.NoError(t, <-result)
	require.Equal(t, task.Success, r.get(k.ID).State)
	require.Equal(t, int64(1), r.get(after.ID).Seq, "nothing was taken after the stop")
}

func TestStopNamesDeafHandlersAndDoesNotWaitForThem(t *testing.T) {
	r := newRig(t)
	w := r.worker(func(o *Options) { o.StopTimeout, o.SoftStop = time.Second, 100*time.Millisecond })
	g := newGate()
	var deaf sync.WaitGroup
	deaf.Add(1)
	HandleFunc(w, "deaf", func(_ context.Context, k Task) (any, error) {
		defer deaf.Done()
		g.entered <- k.ExecutionID
		<-g.open
		return nil, nil
	})
	HandleFunc(w, "obedient", func(ctx context.Context, _ Task) (any, error) { return nil, g.pass(ctx) })
	stop := r.run(w)
	left, back := r.submit("deaf", 1)[0], r.submit("obedient", 1)[0]
	g.awaitEntry(t)
	g.awaitEntry(t)
	begun := time.Now()
	err := stop()
	require.Less(t, time.Since(begun), 3*time.Second, "the stop timeout and 2 s")
	require.ErrorIs(t, err, ErrDeaf)
	require.ErrorContains(t, err, "deaf "+left.ID)
	require.Equal(t, task.Running, r.get(left.ID).State, "left to its lease")
	require.Equal(t, task.Pending, r.get(back.ID).State)
	r.reap(left.ID)
	require.Equal(t, 1, r.get(left.ID).Losses)
	close(g.open)
	deaf.Wait()
}

func TestStopWhileTheDatabaseIsGone(t *testing.T) {
	w, err := New(Options{MongoURI: "mongodb://127.0.0.1:1/?directConnection=true", NATSURL: "nats://127.0.0.1:1", Log: testLog(t)})
	require.NoError(t, err)
	HandleFunc(w, "email", func(context.Context, Task) (any, error) { return nil, nil })
	require.ErrorContains(t, w.Health(), "has not reached the database")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	require.NoError(t, w.Run(ctx))
	require.Less(t, time.Since(begun), 3*time.Second)
	require.ErrorContains(t, w.Health(), "has stopped")
}

func TestStopWhenTheDatabaseGoesAwayInBetween(t *testing.T) {
	r := newRig(t)
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{})
	w := r.worker(func(o *Options) { o.MongoURI, o.StopTimeout = mongo.URI(), 2*time.Second })
	HandleFunc(w, "email", func(context.Context, Task) (any, error) { return nil, nil })
	stop := r.run(w)
	require.NoError(t, mongo.Kill())
	begun := time.Now()
	require.NoError(t, stop())
	require.Less(t, time.Since(begun), 4*time.Second)
}

func TestStopMethod(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "email", func(context.Context, Task) (any, error) { return nil, nil })
	result := make(chan error, 1)
	go func() { result <- w.Run(context.Background()) }()
	stacktest.Eventually(t, patience, "the worker is up", func() bool { return w.Health() == nil })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.Stop(ctx))
	require.NoError(t, w.Stop(ctx), "twice is like once")
	require.NoError(t, <-result)
	require.ErrorContains(t, w.Health(), "has stopped")
	require.ErrorContains(t, w.Run(ctx), "was called before")
}

func TestStopGivesHeldSignalsBack(t *testing.T) {
	r := newRig(t)
	first := r.worker(func(o *Options) { o.Slots = 2 })
	g := newGate()
	HandleFunc(first, "long", func(ctx context.Context, k Task) (any, error) { return nil, g.pass(ctx) })
	stop := r.run(first)
	tasks := r.insert("long", 20)
	r.signal(tasks...)
	g.awaitEntry(t)
	g.awaitEntry(t)
	require.NoError(t, stop())

	second := r.worker()
	HandleFunc(second, "long", func(context.Context, Task) (any, error) { return nil, nil })
	r.run(second)
	for _, k := range tasks[2:] {
		r.awaitState(k.ID, task.Success)
	}
	for _, k := range tasks[:2] {
		require.Equal(t, task.Pending, r.get(k.ID).State, "handed back; only a dispatcher or a search tells of it")
	}
}
