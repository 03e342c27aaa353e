package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestWorkGoesOnWithoutNATSInOrderOfPriority(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := newRig(t)
	require.NoError(t, r.nats.Down())
	w := r.worker(func(o *Options) { o.Slots = 1 })
	var mu sync.Mutex
	var order []string
	note := func(_ context.Context, k Task) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, k.ID)
		return nil, nil
	}
	HandleFunc(w, "email", note)
	HandleFunc(w, "report", note)
	var want []string
	with := func(priority int) func(*task.Task) { return func(k *task.Task) { k.Priority = priority } }
	late := r.insert("email", 2, with(9))
	later := r.insert("report", 1, with(5))
	urgent := r.insert("report", 2, with(0))
	r.insert("email", 1, func(k *task.Task) { k.ScheduledAt = time.Now().Add(time.Hour) })
	r.insert("stranger", 1)
	for _, list := range [][]*task.Task{urgent, later, late} {
		for _, k := range list {
			want = append(want, k.ID)
		}
	}
	r.run(w)
	for _, id := range want {
		r.awaitState(id, task.Success)
	}
	mu.Lock()
	require.Equal(t, want, order)
	mu.Unlock()

	// NATS comes later: then a signal is enough.
	require.NoError(t, r.nats.Restart(t.Context()))
	stacktest.Eventually(t, patience, "the worker listens", func() bool {
		info, err := r.bus.LaneInfo(t.Context(), "email", task.ChannelStable, string(task.Normal))
		return err == nil && info.Exists
	})
	r.awaitState(r.submit("email", 1)[0].ID, task.Success)
}

func TestSearchGoesThroughADeepBacklog(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := newRig(t)
	require.NoError(t, r.nats.Down())
	w := r.worker(func(o *Options) { o.Slots = 50 })
	HandleFunc(w, "email", func(context.Context, Task) (any, error) { return nil, nil })
	old := r.insert("email", 100, func(k *task.Task) { k.ScheduledAt = time.Now().Add(-24 * time.Hour) })
	fresh := r.insert("email", 300)
	r.run(w)
	for _, k := range append(old, fresh...) {
		r.awaitState(k.ID, task.Success)
	}
}

func TestWorkGoesOnWhenNATSIsWiped(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "email", func(context.Context, Task) (any, error) { return nil, nil })
	r.run(w)
	r.awaitState(r.submit("email", 1)[0].ID, task.Success)
	require.NoError(t, r.nats.Wipe(t.Context()))
	lost := r.insert("email", 1)[0] // nobody signals it
	r.awaitState(lost.ID, task.Success)
	stacktest.Eventually(t, patience, "lanes are made again", func() bool {
		info, err := r.bus.LaneInfo(t.Context(), "email", task.ChannelStable, string(task.Normal))
		return err == nil && info.Exists
	})
	r.awaitState(r.submit("email", 1)[0].ID, task.Success)
}

func TestSignalsThatCannotStartHereGoToOthers(t *testing.T) {
	r := newRig(t)
	g := newGate()
	busy := r.worker(func(o *Options) { o.Slots = 3 })
	HandleFunc(busy, "long", func(ctx context.Context, k Task) (any, error) { return "busy", g.pass(ctx) })
	r.run(busy)
	tasks := r.insert("long", 10)
	r.signal(tasks...) // one message for ten, of which three can start
	for range 3 {
		g.awaitEntry(t)
	}
	other := r.worker()
	HandleFunc(other, "long", func(context.Context, Task) (any, error) { return "other", nil })
	r.run(other)
	for _, k := range tasks[3:] {
		require.Equal(t, `"other"`, string(r.awaitState(k.ID, task.Success).Result))
	}
	single := r.submit("long", 5)
	for _, k := range single {
		require.Equal(t, `"other"`, string(r.awaitState(k.ID, task.Success).Result))
	}
	close(g.open)
	for _, k := range tasks[:3] {
		require.Equal(t, `"busy"`, string(r.awaitState(k.ID, task.Success).Result))
	}
	stacktest.Eventually(t, patience, "every signal is settled", func() bool {
		info, err := r.bus.LaneInfo(t.Context(), "long", task.ChannelStable, string(task.Normal))
		return err == nil && info.Pending == 0 && info.AckPending == 0
	})
}

func TestEarlySignalsAreHeldForAMomentOnly(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "email", func(context.Context, Task) (any, error) { return nil, nil })
	r.run(w)
	soon := r.insert("email", 1, func(k *task.Task) { k.ScheduledAt = time.Now().Add(800 * time.Millisecond) })[0]
	far := r.insert("email", 1, func(k *task.Task) { k.ScheduledAt = time.Now().Add(time.Hour) })[0]
	r.signal(soon, far)
	done := r.awaitState(soon.ID, task.Success)
	require.Less(t, done.StartedAt.Sub(soon.ScheduledAt), 2*time.Second, "found by its signal, not by a search")
	require.False(t, done.StartedAt.Before(soon.ScheduledAt))
	require.Equal(t, task.Pending, r.get(far.ID).State)
	stacktest.Eventually(t, patience, "the signal is acknowledged", func() bool {
		info, err := r.bus.LaneInfo(t.Context(), "email", task.ChannelStable, string(task.Normal))
		return err == nil && info.Pending == 0 && info.AckPending == 0
	})
}

func TestUrgentLaneFirstAndOthersKeepAShare(t *testing.T) {
	r := newRig(t)
	w := r.worker(func(o *Options) { o.Slots = 1 })
	lanes := make(chan task.Lane, 1000)
	g := newGate()
	HandleFunc(w, "long", func(ctx context.Context, k Task) (any, error) {
		if k.Attempt == 1 && string(k.Payload) == `"plug"` {
			return nil, g.pass(ctx)
		}
		lanes <- task.LaneOf(k.Priority)
		return nil, nil
	})
	r.run(w)
	r.submit("long", 1, func(k *task.Task) { k.Payload = []byte(`"plug"`) })
	g.awaitEntry(t)
	for _, priority := range []int{9, 5, 0} { // the least urgent are there first
		for _, k := range r.insert("long", 60, func(k *task.Task) { k.Priority = priority }) {
			r.signal(k)
		}
	}
	close(g.open)
	seen := make(map[task.Lane]int)
	for range 60 {
		select {
		case l := <-lanes:
			seen[l]++
		case <-time.After(patience):
			t.Fatal("no task began")
		}
	}
	require.Greater(t, seen[task.High], 35, "the urgent ones come first: %v", seen)
	require.GreaterOrEqual(t, seen[task.Normal], 3, "%v", seen)
	require.GreaterOrEqual(t, seen[task.Low], 3, "%v", seen)
}

func TestSignalThatCannotBeReadIsDropped(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	HandleFunc(w, "email", func(context.Context, Task) (any, error) { return nil, nil })
	r.run(w)
	for _, body := range []string{"", "{", `{"tasks":[]}`, `{"tasks":[{"seq":1}]}`} {
		_, err := r.bus.JS().Publish(t.Context(), events.SubjectWork("email", task.ChannelStable, string(task.Normal)), []byte(body))
		require.NoError(t, err)
	}
	r.awaitState(r.submit("email", 1)[0].ID, task.Success)
	stacktest.Eventually(t, patience, "nothing comes again", func() bool {
		info, err := r.bus.LaneInfo(t.Context(), "email", task.ChannelStable, string(task.Normal))
		return err == nil && info.Pending == 0 && info.AckPending == 0
	})
}
