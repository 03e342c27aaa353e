package dispatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// newTestBoard is a board whose signals are collected and taken for arrived.
func newTestBoard(m *memory) *board {
	b := newBoard(m, 5*time.Second, newMetrics(prometheus.NewRegistry(), func() (a, b, c, d int) { return }), nil)
	b.out = func(s []signal) { m.accept(s) }
	return b
}

func observed(id string, seq int64, from, to task.State, priority int, at, scheduled time.Time) task.Observed {
	return task.Observed{ID: id, Change: task.Change{
		Seq: seq, Type: "email", Channel: "stable", Priority: priority, From: from, To: to, At: at.UTC(), ScheduledAt: scheduled.UTC(),
	}}
}

func TestDueIsSignalledAtOnceAndLaterGetsATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b := newTestBoard(m)
		now := time.Now()
		b.observe([]task.Observed{
			observed("due", 1, "", task.Pending, 5, now, now.Add(-250*time.Millisecond)),
			observed("soon", 1, "", task.Pending, 5, now, now.Add(3*time.Second)),
			observed("late", 1, "", task.Pending, 5, now, now.Add(time.Hour)),
			observed("waiting", 1, "", task.Waiting, 5, now, now),
		})
		require.Equal(t, []string{"due"}, m.ids())
		require.Len(t, b.timers.heap, 1)
		wait, any := b.fire()
		require.True(t, any)
		require.Equal(t, time.Second, wait, "looked at again each second, should the clock move")
		time.Sleep(3*time.Second + time.Millisecond - 1)
		b.fire()
		require.Equal(t, []string{"due"}, m.ids(), "not before its time is sure to have come")
		time.Sleep(time.Nanosecond)
		b.fire()
		require.Equal(t, []string{"due", "soon"}, m.ids())
	})
}

func TestWithoutAClockTheTimeOfTheWriteServes(t *testing.T) {
	m := newMemory()
	m.noClock = true
	b := newTestBoard(m)
	now := time.Now()
	b.observe([]task.Observed{
		observed("due", 1, "", task.Pending, 5, now, now.Add(-250*time.Millisecond)),
		observed("soon", 1, "", task.Pending, 5, now, now.Add(time.Millisecond)),
	})
	require.Equal(t, []string{"due"}, m.ids())
	_, any := b.fire()
	require.True(t, any)
	require.Equal(t, []string{"due"}, m.ids(), "timers wait for a clock")
}

func TestABatchIsSignalledInTheOrderOfTheLane(t *testing.T) {
	m := newMemory()
	b := newTestBoard(m)
	now := time.Now()
	b.observe([]task.Observed{
		observed("b", 1, "", task.Pending, 5, now, now.Add(-time.Second)),
		observed("c", 1, "", task.Pending, 6, now, now.Add(-2*time.Second)),
		observed("a", 1, "", task.Pending, 4, now, now.Add(-time.Second)),
		observed("gone", 1, "", task.Pending, 4, now, now.Add(-time.Second)),
		observed("a0", 1, "", task.Pending, 4, now, now.Add(-3*time.Second)),
		observed("gone", 2, task.Pending, task.Cancelled, 4, now, now),
	})
	require.Equal(t, []string{"a0", "a", "b", "c"}, m.ids())
	for _, s := range m.signals {
		require.Len(t, s.tasks, 1, "nothing is known of their run time")
	}
}

func TestTheLaneFillsToItsDepthAndThenIsInBacklog(t *testing.T) {
	m := newMemory()
	b := newTestBoard(m)
	now := time.Now()
	for i := range 200 {
		b.observe([]task.Observed{observed(fmt.Sprint(i), 1, "", task.Pending, 5, now, now.Add(-time.Second+time.Duration(i)*time.Millisecond))})
	}
	l := b.lanes[emailLane(task.Normal)]
	require.Len(t, m.ids(), baseDepth)
	require.True(t, l.backlog)
	require.False(t, l.refilling, "full")

	// More urgent than what is fed: a few beyond the depth, no more.
	for i := range 20 {
		b.observe([]task.Observed{observed(fmt.Sprint("urgent", i), 1, "", task.Pending, 4, now, now.Add(-time.Second))})
	}
	require.Len(t, m.ids(), baseDepth+fewBeyond)

	// Claims make room; at half its depth the lane asks for a refill. Depth has risen by the rate of starts.
	for i, id := range m.ids() {
		require.Equal(t, l.held, baseDepth+fewBeyond-i)
		b.observe([]task.Observed{observed(id, 2, task.Pending, task.Running, 5, now, now)})
		if l.refilling {
			require.LessOrEqual(t, 2*l.held, baseDepth+i+1)
			return
		}
		require.Greater(t, 2*l.held, baseDepth+i+1)
	}
	t.Fatal("no refill was asked for")
}

func TestBurstsOfShortTasksShareSignals(t *testing.T) {
	m := newMemory()
	b := newTestBoard(m)
	now := time.Now()
	for i := range 10 {
		id := fmt.Sprint("old", i)
		b.observe([]task.Observed{
			observed(id, 2, task.Pending, task.Running, 5, now, now),
			observed(id, 3, task.Running, task.Success, 5, now.Add(2*time.Millisecond), now),
		})
	}
	b.slots(map[string]int{"email": 1, "other": 7})
	batch := make([]task.Observed, 120)
	for i := range batch {
		batch[i] = observed(fmt.Sprint(i), 1, "", task.Pending, 5, now, now.Add(-time.Second))
	}
	b.observe(batch)
	var sizes []int
	for _, s := range m.signals {
		sizes = append(sizes, len(s.tasks))
	}
	require.Equal(t, []int{50, 50, 20}, sizes, "one slot starts 50 tasks of 2 ms in 100 ms")
	b.slots(map[string]int{"email": 100})
	m.taken()
	for i := range batch {
		batch[i] = observed(fmt.Sprint("b", i), 1, "", task.Pending, 5, now, now.Add(-time.Second))
	}
	b.observe(batch)
	require.Len(t, m.signals[0].tasks, 64)
}

func TestWhatMovesInFlight(t *testing.T) {
	now := time.Now()
	m := newMemory()
	b := newTestBoard(m)
	normal, high := emailLane(task.Normal), emailLane(task.High)
	b.observe([]task.Observed{observed("a", 1, "", task.Pending, 5, now, now.Add(-time.Second))})
	b.observe([]task.Observed{observed("a", 1, "", task.Pending, 5, now, now.Add(-time.Second))})
	require.Equal(t, []string{"a"}, m.ids(), "a repeated event is no new task")
	b.observe([]task.Observed{observed("a", 2, task.Pending, task.Pending, 4, now, now.Add(-time.Second))})
	require.Equal(t, []string{"a"}, m.ids(), "re-prioritised within the lane: the signal leads to it as before")
	b.observe([]task.Observed{observed("a", 3, task.Pending, task.Pending, 1, now, now.Add(-time.Second))})
	require.Equal(t, []string{"a", "a"}, m.ids(), "in another lane it needs a signal there")
	require.Zero(t, b.lanes[normal].held)
	require.Equal(t, 1, b.lanes[high].held)
	b.observe([]task.Observed{observed("a", 4, task.Running, task.Pending, 1, now, now.Add(-time.Second))})
	require.Len(t, m.ids(), 3, "back from a run whose claim was not seen: the old signal is used up")
	b.observe([]task.Observed{observed("a", 2, task.Pending, task.Running, 1, now, now)})
	require.Equal(t, 1, b.lanes[high].held, "an exit older than the signal")
	b.observe([]task.Observed{observed("a", 5, task.Pending, task.Pending, 1, now, now.Add(3*time.Second))})
	require.Zero(t, b.lanes[high].held, "put off")
	require.Len(t, b.timers.heap, 1)
	b.observe([]task.Observed{observed("a", 6, task.Pending, task.Cancelled, 1, now, now)})
	require.Empty(t, b.timers.heap)
	require.Empty(t, b.flying)
}

// A claim that lands between a refill's read and its signals must not be signalled again.
func TestWhatLeavesDuringAReadIsNotFed(t *testing.T) {
	m := newMemory()
	b := newTestBoard(m)
	now := time.Now()
	l := b.lane("email", "stable", 5, now)
	b.mark(l, nil, false, now)
	b.wake(l, now)
	require.Same(t, l, b.pop())
	read := []task.Candidate{
		{ID: "a", Type: "email", Channel: "stable", Priority: 5, Seq: 1, ScheduledAt: now},
		{ID: "b", Type: "email", Channel: "stable", Priority: 5, Seq: 3, ScheduledAt: now},
	}
	b.observe([]task.Observed{
		observed("a", 2, task.Pending, task.Running, 5, now, now),
		observed("b", 2, task.Pending, task.Running, 5, now, now), // older than what was read
	})
	require.True(t, b.taken(l, &read[0]))
	require.False(t, b.taken(l, &read[1]))
	b.feed(l, read)
	require.Equal(t, []string{"b"}, m.ids())
	b.release(l)
	require.Empty(t, l.exits.seqs)
}

func TestARefusedSignalWaitsInTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b := newTestBoard(m)
		now := time.Now()
		b.observe([]task.Observed{
			observed("a", 1, "", task.Pending, 5, now, now.Add(-time.Second)),
			observed("b", 1, "", task.Pending, 1, now, now.Add(-time.Second)),
		})
		signals := m.taken()
		b.published(signals, []error{fmt.Errorf("publish: %w", events.ErrFull), nil})
		refused, fine := b.lanes[signals[0].lane], b.lanes[signals[1].lane]
		require.True(t, refused.backlog)
		require.Zero(t, refused.held)
		require.False(t, refused.refilling, "not at once")
		require.False(t, fine.backlog)
		require.Equal(t, 1, fine.held)
		require.NoError(t, b.ready())
		wait, any := b.nudge()
		require.True(t, any)
		require.Greater(t, wait, 100*time.Millisecond)
		time.Sleep(wait)
		b.nudge()
		require.True(t, refused.refilling)
	})
}

func TestWhileTheBusIsAwayNobodyAsksForEveryLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b := newTestBoard(m)
		now := time.Now()
		b.observe([]task.Observed{observed("a", 1, "", task.Pending, 5, now, now.Add(-time.Second))})
		b.published(m.taken(), []error{errAway})
		require.ErrorIs(t, b.ready(), errAway)
		for i, p := range []int{1, 5, 8} {
			b.observe([]task.Observed{observed(fmt.Sprint(i), 1, "", task.Pending, p, now, now.Add(-time.Second))})
		}
		require.Empty(t, m.ids(), "no signal is tried")
		_, lanes, backlog, _ := b.counts()
		require.Equal(t, 3, lanes)
		require.Equal(t, 3, backlog)
		require.Empty(t, b.queue)
		for wait, any := b.nudge(); any; wait, any = b.nudge() {
			time.Sleep(wait)
		}
		require.Len(t, b.queue, 3, "then all are fed again")
		time.Sleep(3 * lastPause)
		require.NoError(t, b.ready(), "what is not tried is not known to fail")
	})
}

func TestIdleLanesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b := newTestBoard(m)
		now := time.Now()
		for i := range 1_000 {
			o := observed("a", int64(2*i+1), "", task.Pending, 5, now, now.Add(-time.Second))
			o.Change.Type = fmt.Sprint("type-", i)
			left := o
			left.Change.Seq++
			left.Change.From, left.Change.To = task.Pending, task.Running
			b.observe([]task.Observed{o})
			b.observe([]task.Observed{left})
		}
		require.Len(t, b.lanes, 1_000)
		b.tidy()
		require.Len(t, b.lanes, 1_000)
		time.Sleep(idleLane + time.Second)
		b.tidy()
		require.Empty(t, b.lanes)
		require.Empty(t, b.types)
	})
}

func TestSeriesOfLanesAreBoundedAndGoWithThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		metrics := newMetrics(prometheus.NewRegistry(), func() (a, b, c, d int) { return })
		var sent []signal
		term := func() *board {
			return newBoard(m, 5*time.Second, metrics, func(s []signal) { sent = append(sent, s...) })
		}
		b := term()
		signal := func(types int) {
			for i := range types {
				id, now := fmt.Sprint(i), time.Now()
				o := observed(id, 1, "", task.Pending, 5, now, now.Add(-time.Second))
				o.Change.Type = "type-" + id
				b.observe([]task.Observed{o})
				b.published(sent, make([]error, len(sent)))
				sent = nil
				o.Change.Seq, o.Change.From, o.Change.To = 2, task.Pending, task.Failed
				b.observe([]task.Observed{o})
			}
		}
		const beyond = 5
		signal(maxLaneSeries + beyond)
		for _, c := range []*prometheus.CounterVec{metrics.signals, metrics.tasks} {
			require.Equal(t, maxLaneSeries+1, testutil.CollectAndCount(c))
			require.InDelta(t, beyond, testutil.ToFloat64(c.WithLabelValues("other", "other", "normal")), 0)
			require.InDelta(t, 1, testutil.ToFloat64(c.WithLabelValues("type-7", "stable", "normal")), 0)
		}
		signal(1)
		require.InDelta(t, 2, testutil.ToFloat64(metrics.signals.WithLabelValues("type-0", "stable", "normal")), 0)

		time.Sleep(idleLane + time.Second)
		b.tidy()
		require.Equal(t, 1, testutil.CollectAndCount(metrics.signals), "only what others came to")
		require.Equal(t, 1, testutil.CollectAndCount(metrics.tasks))

		signal(20)
		b = term() // what the last term left is nobody's now
		signal(2)
		b.tidy()
		require.Equal(t, 3, testutil.CollectAndCount(metrics.signals))
	})
}

func BenchmarkObserve(b *testing.B) {
	m := newMemory()
	board := newBoard(m, 5*time.Second, newMetrics(prometheus.NewRegistry(), func() (a, b, c, d int) { return }), func([]signal) {})
	now := time.Now()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		id := fmt.Sprint(i)
		board.observe([]task.Observed{observed(id, 1, "", task.Pending, 5, now, now.Add(-time.Second))})
		board.observe([]task.Observed{observed(id, 2, task.Pending, task.Running, 5, now, now)})
		board.observe([]task.Observed{observed(id, 3, task.Running, task.Success, 5, now, now)})
	}
}
