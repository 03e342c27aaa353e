package dispatch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMeterCountsOneSecond(t *testing.T) {
	var m meter
	at := time.Now()
	m.add(at, 5)
	m.add(at.Add(500*time.Millisecond), 7)
	require.Equal(t, 12, m.rate(at.Add(800*time.Millisecond)))
	require.Equal(t, 7, m.rate(at.Add(1200*time.Millisecond)))
	require.Zero(t, m.rate(at.Add(time.Hour)))
	m.add(at.Add(time.Hour), 3)
	require.Equal(t, 3, m.rate(at.Add(time.Hour)))
}

func TestSpanDoublesThroughEmptyStretches(t *testing.T) {
	var s span
	pos, end := day, day.Add(30*24*time.Hour)
	reads := 0
	for ; pos.Before(end); reads++ {
		to := s.end(pos, end)
		s.learn(0, 64, to.Sub(pos))
		pos = to
	}
	require.LessOrEqual(t, reads, 23)
}

func TestSpanClosesInOnADenseStretch(t *testing.T) {
	s := span{width: 24 * time.Hour}
	s.learn(129, 64, 129*time.Millisecond) // a read that its limit cut off
	require.InDelta(t, float64(80*time.Millisecond), float64(s.width), float64(10*time.Millisecond))
	s.learn(129, 64, 0) // all in one millisecond
	require.Equal(t, minSpan, s.width)
	s.learn(1, 64, time.Hour)
	require.Equal(t, 2*time.Hour, s.width, "no leap further than double")
}

func TestRunsGroupOnlyShortTasks(t *testing.T) {
	var r runs
	require.Equal(t, 1, r.group(), "nothing known")
	r.begin("a", day)
	r.end("a", day.Add(10*time.Millisecond), false)
	require.Equal(t, 10, r.group(), "one slot starts ten such tasks in 100 ms")
	r.slots = 4
	require.Equal(t, 40, r.group())
	r.slots = 100
	require.Equal(t, 64, r.group())
	for i := range 60 {
		id := fmt.Sprint(i)
		r.begin(id, day)
		r.end(id, day.Add(60*time.Millisecond), true)
	}
	require.True(t, r.short(), "under load that may be the batches")
	for i := range 60 {
		id := fmt.Sprint(i)
		r.begin(id, day)
		r.end(id, day.Add(60*time.Millisecond), false)
	}
	require.Equal(t, 1, r.group(), "long on average")
	r.begin("b", day)
	r.end("b", day.Add(time.Millisecond), true)
	require.Less(t, r.mean.value, 55*time.Millisecond, "lower it may always be")
	r.begin("c", day)
	r.end("c", day.Add(time.Second), true)
	require.Greater(t, r.mean.value, 100*time.Millisecond, "long is long")
	r.end("never begun", day, false)
}

func TestRunsAreBoundedAndLetGoOfLongOnes(t *testing.T) {
	var r runs
	for i := range 10_000 {
		r.begin(fmt.Sprint(i), day)
	}
	require.Len(t, r.open, runSamples)
	r.settle(day.Add(500 * time.Millisecond))
	require.Len(t, r.open, runSamples)
	r.settle(day.Add(2 * time.Second))
	require.Empty(t, r.open)
	require.False(t, r.short())
	require.True(t, r.mean.known)
}

func TestTimersGiveWhatIsDueInOrderAndStayBounded(t *testing.T) {
	timers := newTimers(500)
	kept := 0
	for _, i := range rand.Perm(1_000) {
		if timers.set(task.Candidate{ID: fmt.Sprint(i), Seq: 1, ScheduledAt: day.Add(time.Duration(i) * time.Millisecond)}) {
			kept++
		}
	}
	require.Equal(t, 500, kept)
	require.Zero(t, timers.room())
	var last time.Time
	taken := 0
	for due := timers.due(day.Add(time.Second), 64); len(due) > 0; due = timers.due(day.Add(time.Second), 64) {
		for _, c := range due {
			require.False(t, c.ScheduledAt.Before(last))
			last = c.ScheduledAt
			taken++
		}
	}
	require.Equal(t, 500, taken)
	require.Empty(t, timers.byID)
	_, any := timers.next()
	require.False(t, any)
}

func TestTimersFollowTheNewestReading(t *testing.T) {
	timers := newTimers(10)
	timers.set(task.Candidate{ID: "a", Seq: 3, ScheduledAt: day.Add(time.Second)})
	timers.set(task.Candidate{ID: "a", Seq: 2, ScheduledAt: day})
	require.Empty(t, timers.due(day, 10), "an older reading moves nothing")
	timers.set(task.Candidate{ID: "a", Seq: 4, ScheduledAt: day})
	timers.remove("a", 3)
	require.Len(t, timers.due(day, 10), 1, "an older exit removes nothing")
	timers.set(task.Candidate{ID: "a", Seq: 5, ScheduledAt: day})
	timers.remove("a", 6)
	require.Empty(t, timers.due(day, 10))
}

var anySignal = signal{lane: emailLane(task.Normal)}

func TestASignalAsItTravels(t *testing.T) {
	s := signal{lane: emailLane(task.High), number: 12, tasks: []events.SignalTask{{ID: "a", Seq: 3, Attempt: 1, At: day.UnixMilli()}}}
	msg := s.message(7)
	require.Equal(t, "ax.work.email.stable.high", msg.Subject)
	require.JSONEq(t, `{"tasks":[{"id":"a","seq":3,"attempt":1,"at":1903824000000}]}`, string(msg.Data))
	require.Empty(t, msg.ID, "no deduplication")
	meta := events.MetaOf(msg.Header)
	require.Equal(t, events.Meta{ID: "7-12", Source: "/ax/dispatcher", Type: events.TypeTaskSignalled}, meta)
}

func TestOutboxReachesAMarkOnceAllBeforeItWasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		hold := make(chan struct{})
		m.publish = func(signal) error { <-hold; return nil }
		o := newOutbox(m, 7)
		o.done = func([]signal, []error) {}
		go func() { _ = o.run(t.Context()) }()

		o.mark(mark{token: []byte("idle"), events: 0})
		require.Equal(t, "idle", string(o.place().token), "nothing to wait for")
		o.add([]signal{anySignal})
		synctest.Wait()
		o.mark(mark{token: []byte("one"), events: 1})
		o.add([]signal{anySignal, anySignal})
		o.mark(mark{token: []byte("two"), events: 2})
		o.mark(mark{token: []byte("three"), events: 3})
		require.Equal(t, "idle", string(o.place().token))
		hold <- struct{}{}
		synctest.Wait()
		require.Equal(t, "one", string(o.place().token))
		hold <- struct{}{}
		hold <- struct{}{}
		synctest.Wait()
		require.Equal(t, "three", string(o.place().token))
		require.Equal(t, 3, o.place().events)
	})
}

func TestCursorIsSavedWhenItIsWorthIt(t *testing.T) {
	a, b := []byte("a"), []byte("b")
	require.False(t, due(mark{}, mark{}, time.Hour), "no place yet")
	require.False(t, due(mark{token: a, events: 1}, mark{token: a, events: 1}, time.Hour), "nothing new")
	require.True(t, due(mark{}, mark{token: a}, time.Second), "the first of a term")
	require.False(t, due(mark{token: a}, mark{token: b, events: 1}, 500*time.Millisecond))
	require.True(t, due(mark{token: a}, mark{token: b, events: 1}, time.Second))
	require.True(t, due(mark{token: a}, mark{token: b, events: 500}, minSave))
	require.False(t, due(mark{token: a, events: 7}, mark{token: b, events: 7}, 29*time.Second), "idle")
	require.True(t, due(mark{token: a, events: 7}, mark{token: b, events: 7}, 30*time.Second))
}

func TestLostSignals(t *testing.T) {
	now := time.Now()
	sent := func(age time.Duration, l *lane) *flight {
		return &flight{lane: l, sentAt: now.Add(-age), acked: true}
	}
	busy := &lane{startedAt: now.Add(-time.Second), wait: average{value: 3 * time.Second, known: true}}
	stuck := &lane{startedAt: now.Add(-5 * time.Minute), wait: average{value: 3 * time.Second, known: true}}
	there := verdict{info: events.LaneInfo{Exists: true, Pending: 3, AckPending: 2}, asked: now, age: time.Second}
	empty := verdict{info: events.LaneInfo{Exists: true}, asked: now, age: time.Second}
	alone := verdict{info: events.LaneInfo{Pending: 5}, asked: now, age: time.Second}

	require.False(t, sent(15*time.Second, busy).lost(there, now), "within 10 s + twice the wait")
	require.True(t, sent(17*time.Second, busy).lost(there, now))
	require.False(t, sent(4*time.Minute, stuck).lost(there, now), "nothing starts: its workers are busy")
	require.True(t, sent(2*time.Second, stuck).lost(empty, now))
	require.False(t, sent(100*time.Millisecond, busy).lost(empty, now), "too young to tell")
	require.False(t, sent(9*time.Minute, busy).lost(alone, now), "no consumer, no repeats")
	require.True(t, sent(11*time.Minute, busy).lost(alone, now), "the stream keeps nothing that long")
}
