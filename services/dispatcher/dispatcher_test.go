package main

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/services/dispatcher/dispatch"
)

func TestNewTasksAreSignalledAtOnce(t *testing.T) {
	r := newRig(t)
	f := r.workers(10)
	r.dispatcher().awaitLeading()
	r.insert(1, nil) // consumers and connections are warm
	f.await(1, 10*time.Second)
	var waits []time.Duration
	for i := range 50 {
		began := time.Now()
		r.insert(1, func(_ int, tk *task.Task) { tk.Priority = i % 10 })
		f.await(i+2, 10*time.Second)
		waits = append(waits, f.seen()[i+1].tm.Sub(began))
	}
	slices.Sort(waits)
	t.Logf("from before the insert to the signal's arrival: p50 %v, p90 %v, most %v", waits[25], waits[45], waits[49])
	require.Less(t, waits[25], time.Second, "the sweep alone would take that long")
	require.Len(t, f.seen(), 51, "each is signalled once")
}

func TestDelayedTasksComeOnTime(t *testing.T) {
	r := newRig(t)
	f := r.workers(10)
	r.dispatcher().awaitLeading()
	now := r.now()
	due := map[string]time.Time{}
	for _, tk := range r.insert(60, func(i int, tk *task.Task) {
		tk.ScheduledAt = now.Add(time.Duration(i)*130*time.Millisecond + time.Second)
	}) {
		due[tk.ID] = tk.ScheduledAt
	}
	f.await(60, 30*time.Second)
	var late []time.Duration
	for _, a := range f.seen() {
		require.False(t, a.at.Before(due[a.ID].Add(-10*time.Millisecond)), "%s came early", a.ID)
		late = append(late, a.at.Sub(due[a.ID]))
	}
	slices.Sort(late)
	t.Logf("late by: p50 %v, p90 %v, most %v", late[30], late[54], late[59])
	require.Less(t, late[30], 500*time.Millisecond)
	require.Len(t, late, 60, "each is signalled once")
}

// A backlog that waits when the dispatcher comes is fed in the order of priority, time and id; what is more urgent jumps the queue.
func TestADeepBacklogIsFedInExactOrder(t *testing.T) {
	r := newRig(t)
	const deep = 20_000
	at := r.now().Add(-time.Hour).Truncate(time.Millisecond)
	type place struct {
		priority int
		at       time.Time
		id       string
	}
	order := map[string]place{}
	for _, tk := range r.insert(deep, func(i int, tk *task.Task) {
		tk.Priority = 5 + i*7%2 // both in the normal lane
		tk.ScheduledAt = at.Add(time.Duration(i*7919%deep/4) * time.Millisecond)
	}) {
		order[tk.ID] = place{tk.Priority, tk.ScheduledAt, tk.ID}
	}
	i := r.dispatcher()
	f := r.workers(50)
	f.await(4_000, 2*time.Minute)
	before := f.started()
	urgent := r.insert(1, func(_ int, tk *task.Task) { tk.Priority = 4 })[0].ID
	began := time.Now()
	f.await(deep+1, 5*time.Minute)
	stacktest.Eventually(t, 20*time.Second, "the lane leaves backlog", func() bool { return i.metric("ax_dispatcher_backlog_lanes") == 0 })

	seen := f.seen()
	passed := slices.IndexFunc(seen, func(a arrival) bool { return a.ID == urgent })
	require.Less(t, passed, before+3_000, "it jumps the queue")
	t.Logf("%d tasks lay before the urgent one when it came, and %d were started before it; %.0f tasks/s were claimed, with %v signals for %d tasks", deep-before, passed-before,
		float64(deep-before)/time.Since(began).Seconds(), i.metric("ax_dispatcher_signals_total"), deep+1)
	seen = slices.Delete(seen, passed, passed+1)
	require.Len(t, seen, deep, "each is signalled once")
	for i := 1; i < deep; i++ {
		a, b := order[seen[i-1].ID], order[seen[i].ID]
		ordered := a.priority < b.priority || a.priority == b.priority && (a.at.Before(b.at) || a.at.Equal(b.at) && a.id < b.id)
		require.True(t, ordered, "%d: %v came before %v", i, a, b)
	}
}

func TestABurstOfShortTasksSharesSignals(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.db.BeatWorker(t.Context(), task.WorkerInfo{ID: "w", Types: []string{taskType}, Channel: task.ChannelStable, Slots: 50}))
	i := r.dispatcher()
	i.awaitLeading()
	f := r.fleet(50, true)
	sent := func() float64 { return i.metric("ax_dispatcher_signals_total") }
	stacktest.Eventually(t, time.Minute, "the tasks are known to be short, and share signals", func() bool {
		before := sent()
		r.insert(4, nil)
		f.await(int(r.number.Load()), 10*time.Second)
		return sent()-before < 4
	})
	before := sent()
	began := time.Now()
	r.insert(3_000, nil)
	f.await(int(r.number.Load()), 2*time.Minute)
	signals := sent() - before
	t.Logf("3,000 short tasks in %.0f signals, %.0f tasks/s", signals, 3_000/time.Since(began).Seconds())
	require.Less(t, signals, 1_500.0)
}

func TestSignalsThatAreWipedAreSentAgain(t *testing.T) {
	r := newRig(t)
	i := r.dispatcher()
	i.awaitLeading()
	r.insert(300, func(i int, tk *task.Task) { tk.Priority = i % 10 })
	stacktest.Eventually(t, 20*time.Second, "the lanes are full", func() bool { return i.metric("ax_dispatcher_in_flight_tasks") >= 3*64 })
	require.NoError(t, r.nats.Wipe(t.Context()))
	began := time.Now()
	f := r.workers(10)
	f.await(300, 30*time.Second)
	t.Logf("all 300 were started %v after NATS came back empty", time.Since(began).Round(time.Millisecond))
}

func TestNATSIsAwayForAWhile(t *testing.T) {
	r := newRig(t)
	i := r.dispatcher()
	i.awaitLeading()
	require.NoError(t, r.nats.Down())
	r.insert(500, func(i int, tk *task.Task) { tk.Priority = i % 10 })
	stacktest.Eventually(t, 30*time.Second, "it is not ready", func() bool {
		code, body := i.get("/readyz")
		return code == http.StatusServiceUnavailable && i.metric("ax_dispatcher_publish_failures_total") > 0 && body != ""
	})
	require.NoError(t, r.nats.Wipe(t.Context())) // it comes back empty
	f := r.workers(10)
	f.await(500, 60*time.Second)
	stacktest.Eventually(t, 30*time.Second, "it is ready again", func() bool {
		code, _ := i.get("/readyz")
		return code == http.StatusOK
	})
}

func TestAnotherLeadsWhenOneStops(t *testing.T) {
	r := newRig(t)
	f := r.workers(10)
	first := r.dispatcher()
	first.awaitLeading()
	second := r.dispatcher()
	r.insert(100, nil)
	f.await(100, 30*time.Second)
	require.Zero(t, second.metric("ax_dispatcher_signals_total"), "a follower sends nothing")
	code, _ := second.get("/readyz")
	require.Equal(t, http.StatusOK, code, "a follower is ready")
	first.stop()
	r.insert(100, func(i int, tk *task.Task) { tk.ScheduledAt = r.now().Add(time.Duration(i) * 10 * time.Millisecond) })
	f.await(200, 30*time.Second)
	require.Positive(t, second.metric("ax_dispatcher_signals_total"))
}

func TestTheStreamsHistoryIsLost(t *testing.T) {
	r := newRig(t)
	first := r.dispatcher()
	first.awaitLeading()
	r.insert(10, nil)
	stacktest.Eventually(t, 10*time.Second, "a place in the stream is saved", func() bool {
		token, _, err := r.db.LoadCursor(t.Context(), dispatch.CursorName)
		return err == nil && token != nil
	})
	first.stop()
	// A token that this server cannot continue from, as after its oplog has rolled over.
	useless := []byte{0x2b, 0, 0, 0, 0x02, '_', 'd', 'a', 't', 'a', 0, 0x1b, 0, 0, 0}
	useless = append(append(useless, "82000000010000000129295A10"...), 0, 0)
	require.NoError(t, r.db.SaveCursor(t.Context(), dispatch.CursorName, useless, time.Time{}, 1))
	old := r.now().Add(-time.Hour)
	r.insert(200, func(_ int, tk *task.Task) { tk.ScheduledAt = old })

	second := r.dispatcher()
	f := r.workers(10)
	f.await(210, 30*time.Second)
	stacktest.Eventually(t, time.Minute, "the place is given up", func() bool { return second.metric("ax_dispatcher_history_lost_total") > 0 })
	r.insert(1, nil)
	f.await(211, 10*time.Second)
	stacktest.Eventually(t, 10*time.Second, "it follows the stream", func() bool { return second.metric("ax_dispatcher_degraded_bool") == 0 })
}

func TestWithoutChangeStreams(t *testing.T) {
	m := stacktest.StartMongo(t, localstack.MongoOptions{Standalone: true})
	r := newRigOn(t, m.URI(), "sweeping")
	i := r.dispatcher()
	i.awaitLeading()
	f := r.workers(20)
	r.insert(2_000, func(i int, tk *task.Task) { tk.Priority = i % 10 })
	began := time.Now()
	f.await(2_000, 2*time.Minute)
	t.Logf("2,000 tasks in %v", time.Since(began).Round(time.Millisecond))
	require.EqualValues(t, 1, i.metric("ax_dispatcher_degraded_bool"))
	due := r.now().Add(3 * time.Second)
	r.insert(1, func(_ int, tk *task.Task) { tk.ScheduledAt = due })
	f.await(2_001, 10*time.Second)
	last := f.seen()[len(f.seen())-1]
	require.False(t, last.at.Before(due.Add(-10*time.Millisecond)))
	t.Logf("a delayed task came %v after its time", last.at.Sub(due))
}

func TestConfigurationIsRefused(t *testing.T) {
	c := Config{Horizon: time.Second, Sweep: time.Second,
		WithNATS: process.WithNATS{NATSURL: "nats://h", Common: process.Common{MongoURI: "mongodb://h", Database: "ax"}}}
	require.ErrorContains(t, c.Check(), "AX_DISPATCHER_HORIZON")
	c.Horizon = 2 * time.Second
	require.NoError(t, c.Check())
}
