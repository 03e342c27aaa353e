package dispatch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

// drain works until the given number of tasks was claimed, and returns them in the order of their signals.
func (m *memory) drain(t *testing.T, n int, within time.Duration, quiet bool) []string {
	t.Helper()
	var ids []string
	began := time.Now()
	for len(ids) < n {
		require.Less(t, time.Since(began), within, "%d of %d tasks signalled", len(ids), n)
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		ids = append(ids, m.work(quiet)...)
	}
	return ids
}

func TestADeepBacklogIsFedInExactOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		now := time.Now()
		for i := range 5_000 { // priorities 4 to 6 are one lane; many share a millisecond
			m.insert(fmt.Sprintf("t%05d", i), 4+rand.IntN(3), now.Add(-time.Duration(rand.IntN(2_000))*time.Millisecond), true)
		}
		order := map[string]position{}
		for id, c := range m.tasks {
			order[id] = positionOf(&c)
		}
		_, stop := m.lead(t, 1)
		ids := m.drain(t, 2_000, time.Minute, false)
		// A more urgent one does not wait for the others.
		m.insert("urgent", 4, now.Add(-time.Hour), false)
		more := m.drain(t, 300, time.Minute, false)
		require.Contains(t, more, "urgent")
		ids = append(ids, m.drain(t, 5_001-len(ids)-len(more), time.Minute, false)...)
		require.NoError(t, stop())

		for i := 1; i < 2_000; i++ {
			require.True(t, order[ids[i-1]].before(order[ids[i]]), "%d: %v before %v", i, order[ids[i-1]], order[ids[i]])
		}
	})
}

func TestLanesStayShallow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		d, stop := m.lead(t, 1)
		for i := range 900 {
			m.insert(fmt.Sprint(i), rand.IntN(10), time.Now().Add(-time.Second), false)
		}
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, len(m.ids()), 3*(baseDepth+fewBeyond), "nobody starts anything")
		flying, lanes, backlog, _ := d.counts()
		require.Equal(t, 3, lanes)
		require.Equal(t, 3, backlog)
		require.LessOrEqual(t, flying, 3*(baseDepth+fewBeyond))
		m.drain(t, 900, time.Minute, false)
		time.Sleep(time.Second)
		flying, _, backlog, _ = d.counts()
		require.Zero(t, flying)
		require.Zero(t, backlog, "a lane that has drained leaves backlog")
		require.NoError(t, stop())
	})
}

func TestWhatTheStreamDidNotTellIsFoundByTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, stop := m.lead(t, 1)
		time.Sleep(10 * time.Second)
		m.insert("now", 5, time.Now(), true)
		at := time.Now().Add(20 * time.Second).Truncate(time.Millisecond)
		m.insert("later", 5, at, true)
		require.Equal(t, []string{"now"}, m.drain(t, 1, 4*time.Second, false))
		time.Sleep(time.Until(at))
		synctest.Wait()
		require.Empty(t, m.ids())
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"later"}, m.work(false), "on time all the same")
		for i := range 20 {
			time.Sleep(370 * time.Millisecond)
			m.insert(fmt.Sprint(i), 5, time.Now().Add(-1900*time.Millisecond), true) // committed late
			m.drain(t, 1, 4*time.Second, false)
		}
		m.insert("old", 5, time.Now().Add(-time.Hour), true) // the sweep does not look so far back
		require.Equal(t, []string{"old"}, m.drain(t, 1, 80*time.Second, false), "the walk does")
		require.NoError(t, stop())
	})
}

func TestMoreTimersThanThereIsRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b := newTestBoard(m)
		at := time.Now().Add(3 * time.Second)
		b.timers.limit = 10
		for i := range 30 {
			b.observe([]task.Observed{observed(fmt.Sprint(i), 1, "", task.Pending, 5, time.Now(), at)})
		}
		require.Len(t, b.timers.heap, 10)
	})
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		d, stop := m.lead(t, 1)
		synctest.Wait()
		d.board.Load().timers.limit = 10
		at := time.Now().Add(3 * time.Second)
		for i := range 30 {
			m.insert(fmt.Sprint(i), 5, at, false)
		}
		m.drain(t, 30, 8*time.Second, false)
		require.NoError(t, stop())
	})
}

func TestLostSignalsAreSentAgainWithinOneSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, stop := m.lead(t, 1)
		for i := range 300 {
			m.insert(fmt.Sprintf("%03d", i), 5, time.Now().Add(-time.Second), false)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		lost := idsOf(m.taken())
		require.NotEmpty(t, lost)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.ElementsMatch(t, lost, m.ids())
		m.drain(t, 300, time.Minute, false)
		require.NoError(t, stop())
	})
}

func TestAWipedStreamIsNoticedBesideNewSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, stop := m.lead(t, 1)
		for i := range 300 {
			m.insert(fmt.Sprintf("%03d", i), i%10, time.Now().Add(-time.Second), false)
		}
		time.Sleep(100 * time.Millisecond)
		lost := idsOf(m.taken())
		require.GreaterOrEqual(t, len(lost), 3*baseDepth)
		m.mu.Lock()
		m.made = "second"
		m.stored[emailLane(task.High)] = 1_000 // new ones, so that the lanes do not look empty
		m.stored[emailLane(task.Normal)] = 1_000
		m.stored[emailLane(task.Low)] = 1_000
		m.mu.Unlock()
		time.Sleep(2500 * time.Millisecond) // a sweep, with its jitter
		again := m.ids()
		require.Len(t, again, 3*baseDepth)
		require.Contains(t, again, lost[0])
		m.drain(t, 300, time.Minute, false)
		require.NoError(t, stop())
	})
}

func TestALaneWithoutAConsumerGetsOneDepthAndNoRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.noBody[emailLane(task.Normal)] = true
		_, stop := m.lead(t, 1)
		for i := range 300 {
			m.insert(fmt.Sprint(i), 5, time.Now().Add(-time.Second), false)
		}
		time.Sleep(9 * time.Minute)
		require.LessOrEqual(t, len(m.ids()), baseDepth+fewBeyond)
		m.mu.Lock()
		m.signals = nil // the stream has let go of them, and holds others
		m.mu.Unlock()
		time.Sleep(2 * time.Minute)
		require.NotEmpty(t, m.ids(), "they are too old to be there still")
		require.NoError(t, stop())
	})
}

// A task that comes while the last of a backlog is read is left to the refill by the tail, and was not there for the read.
func TestWhatComesWhileALaneLeavesBacklogIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var late time.Time
		m.hasRead = func(w task.Window) {
			if w.Priority == 6 && late.IsZero() { // the last of the lane's priorities
				late = time.Now()
				m.insert("late", 5, time.Now().Add(-time.Second), false)
				time.Sleep(50 * time.Millisecond) // the tail has seen it
			}
		}
		_, stop := m.lead(t, 1)
		time.Sleep(1100 * time.Millisecond)
		for i := range 70 {
			m.insert(fmt.Sprint(i), 5, time.Now().Add(-time.Second), false)
		}
		m.drain(t, 71, time.Minute, false)
		require.False(t, late.IsZero())
		require.Less(t, time.Since(late), 100*time.Millisecond, "found by the refill, not by the sweep")
		require.NoError(t, stop())
	})
}

func TestASlowRefillHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		running, most := 0, 0
		m.hasRead = func(w task.Window) {
			m.mu.Lock()
			running++
			most = max(most, running)
			m.mu.Unlock()
			time.Sleep(10 * time.Second)
			m.mu.Lock()
			running--
			m.mu.Unlock()
		}
		_, stop := m.lead(t, 1)
		time.Sleep(100 * time.Millisecond)
		for lane := range 8 {
			for i := range 100 {
				c := task.Candidate{ID: fmt.Sprint(lane, "-", i), Type: fmt.Sprint("type-", lane), Channel: "stable", Priority: 5, ScheduledAt: time.Now().Add(-time.Second), Seq: 1}
				m.put(c, "", false)
			}
		}
		m.drain(t, 8*baseDepth, time.Second, false) // now all eight want a refill
		time.Sleep(time.Second)
		synctest.Wait()
		m.mu.Lock()
		require.Equal(t, refillers, most)
		m.mu.Unlock()
		m.insert("other", 5, time.Now().Add(-time.Second), false)
		require.Equal(t, []string{"other"}, m.drain(t, 1, 10*time.Millisecond, false))
		require.NoError(t, stop())
	})
}

func TestTheBusIsAwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tries := 0
		m.publish = func(signal) error { tries++; return errAway }
		d, stop := m.lead(t, 1)
		for i := range 500 {
			m.insert(fmt.Sprint(i), i%10, time.Now().Add(-time.Second), false)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, d.Ready(t.Context()), errAway)
		m.mu.Lock()
		require.Less(t, tries, 4_000, "it is not hammered")
		m.publish = nil
		m.mu.Unlock()
		m.drain(t, 500, 2*lastPause, false)
		require.NoError(t, d.Ready(t.Context()))
		require.NoError(t, stop())
	})
}

func TestWithoutChangeStreamsTheSweepIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.open = task.ErrNoChangeStream
		m.put(task.Candidate{ID: "old", Type: "other", Channel: "stable", ScheduledAt: time.Now().Add(-time.Hour), Seq: 1}, "", true)
		_, stop := m.lead(t, 1)
		for i := range 3_000 {
			m.insert(fmt.Sprint(i), i%10, time.Now().Add(-time.Second), true)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Contains(t, m.ids(), "old")
		m.drain(t, 3_001, time.Minute, true)
		at := time.Now().Add(10 * time.Second)
		m.insert("later", 5, at, true)
		require.Equal(t, []string{"later"}, m.drain(t, 1, 10*time.Second+50*time.Millisecond, true))
		require.False(t, time.Now().Before(at))
		require.NoError(t, stop())
		require.Less(t, m.opens, 4, "a server without streams is not asked all the time")
	})
}

// Without claims to see, the bus tells how far the workers are: what is left of a lane are the newest signals.
func TestWithoutChangeStreamsALaneIsRefilledBeforeItIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.open = task.ErrNoChangeStream
		for i := range 500 {
			m.insert(fmt.Sprintf("%03d", i), 5, time.Now().Add(-time.Second), true)
		}
		_, stop := m.lead(t, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, m.ids(), baseDepth)
		done := m.workSome(baseDepth-10, true)
		require.Len(t, done, baseDepth-10)
		time.Sleep(time.Second)
		synctest.Wait()
		left := m.ids()
		require.Greater(t, len(left), baseDepth/2)
		seen := map[string]bool{}
		for _, id := range append(done, left...) {
			require.False(t, seen[id], "%s was signalled twice", id)
			seen[id] = true
		}
		require.NoError(t, stop())
	})
}

func TestLostHistoryLosesNoTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		d, stop := m.lead(t, 1)
		m.insert("before", 5, time.Now().Add(-time.Second), false)
		time.Sleep(5 * time.Second)
		m.mu.Lock()
		require.NotNil(t, m.saved)
		m.open = task.ErrHistoryLost
		m.mu.Unlock()
		for i := range 100 { // while nobody looks, older than a sweep goes back, and of a lane nobody knows
			m.put(task.Candidate{ID: fmt.Sprint(i), Type: "other", Channel: "stable", Priority: 5, ScheduledAt: time.Now().Add(-time.Hour), Seq: 1}, "", true)
		}
		require.True(t, m.claim("before", true))
		time.Sleep(1500 * time.Millisecond)
		m.mu.Lock()
		require.Nil(t, m.saved, "the useless place is dropped in the store too")
		m.open = nil
		m.mu.Unlock()
		time.Sleep(lastPause)
		synctest.Wait()
		flying, _, _, _ := d.counts()
		require.Equal(t, baseDepth, flying, "what left while nobody looked takes no room; the others' lane is full")
		m.drain(t, 100, 10*time.Second, false)
		require.NoError(t, stop())
	})
}

func TestAPlaceThatCannotBeReadIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.saved = []byte("poison")
		d, stop := m.lead(t, 1)
		time.Sleep(time.Minute)
		m.insert("new", 5, time.Now().Add(-time.Second), false)
		require.Equal(t, []string{"new"}, m.drain(t, 1, 10*time.Millisecond, false), "by the stream")
		require.NoError(t, d.Ready(t.Context()))
		require.NoError(t, stop())
	})
}

func TestTheDatabasesClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, stop := m.lead(t, 1)
		now := func() time.Time { n, _, _ := m.Now(); return n }
		m.insert("first", 5, now().Add(2*time.Second), false)
		m.insert("hour", 5, now().Add(time.Hour), false)
		time.Sleep(time.Second)
		m.mu.Lock()
		m.offset = 90 * time.Minute
		m.mu.Unlock()
		m.drain(t, 2, 80*time.Second, false)
		m.insert("second", 5, now().Add(2*time.Second), false)
		m.insert("third", 5, now().Add(2*time.Second), true)
		time.Sleep(time.Second)
		m.mu.Lock()
		m.offset = 0
		m.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, m.ids(), "they are due in an hour and a half again")
		m.insert("fourth", 5, now().Add(-time.Second), false)
		m.insert("fifth", 5, now(), true)
		m.drain(t, 2, 5*time.Second, false)
		time.Sleep(90 * time.Minute)
		synctest.Wait()
		require.ElementsMatch(t, []string{"second", "third"}, m.work(false))
		require.NoError(t, stop())
	})
}

func TestTheDatabaseDoesNotAnswerForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, stop := m.lead(t, 1)
		for i := range 200 {
			m.insert(fmt.Sprint(i), 5, time.Now().Add(-time.Second), false)
		}
		time.Sleep(10 * time.Millisecond)
		m.mu.Lock()
		m.readErr, m.open = errors.New("no primary"), errors.New("no primary")
		m.mu.Unlock()
		done := len(m.work(false))
		time.Sleep(time.Minute)
		m.mu.Lock()
		m.readErr, m.open = nil, nil
		m.mu.Unlock()
		m.drain(t, 200-done, 20*time.Second, false)
		require.NoError(t, stop())
	})
}

func TestALaterEpochEndsTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		d, err := New(Options{Store: m, Bus: m, Log: quietLog(), Registry: registry()})
		require.NoError(t, err)
		m.epoch = 8
		require.ErrorIs(t, d.Lead(t.Context(), task.Lease{Epoch: 7}), task.ErrNotLeader)
		require.NoError(t, d.Ready(t.Context()))
	})
}

func TestWithoutTheDatabasesTimeItIsNotReady(t *testing.T) {
	m := newMemory()
	d, err := New(Options{Store: m, Bus: m, Log: quietLog(), Registry: registry()})
	require.NoError(t, err)
	require.NoError(t, d.Ready(t.Context()))
	m.noClock = true
	require.ErrorIs(t, d.Ready(t.Context()), task.ErrClock)
}

func TestOptionsAreChecked(t *testing.T) {
	m := newMemory()
	_, err := New(Options{Store: m, Log: quietLog(), Registry: registry()})
	require.ErrorContains(t, err, "bus")
	_, err = New(Options{Store: m, Bus: m, Log: quietLog(), Registry: registry(), Sweep: 4 * time.Second, Horizon: 5 * time.Second})
	require.ErrorContains(t, err, "horizon")
}
