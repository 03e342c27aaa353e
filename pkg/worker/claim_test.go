package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestClaimWhoseAnswerIsLostIsLookedUpAndRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, n int) fault {
			if op == "claim" && n == 1 {
				return fault{err: errFault, lost: true}
			}
			return fault{}
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(time.Second)})
		k := s.add("email", 1)[0]
		m := b.bus.signal(k)
		time.Sleep(2 * time.Second)
		got := s.get(k.ID)
		require.Equal(t, task.Success, got.State)
		require.Equal(t, 1, got.Attempts)
		require.Len(t, s.callsOf("claim"), 1, "never claimed blindly again")
		require.Equal(t, s.callsOf("claim")[0].claim, s.callsOf("resolve")[0].claim)
		acks, _, _ := m.heard()
		require.Equal(t, 1, acks, "what was found is decided")
		require.NoError(t, b.stop())
	})
}

func TestClaimThatCannotBeLookedUpIsHandedBackWhenItTurnsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = during(0, 3*time.Second, "claim", "resolve")
		faults := s.faults
		s.faults = func(op string, n int) fault {
			f := faults(op, n)
			f.lost = op == "claim" && n == 1
			return f
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(time.Second)})
		k := s.add("email", 1)[0]
		m := b.bus.signal(k)
		time.Sleep(20 * time.Second)
		got := s.get(k.ID)
		require.Equal(t, []task.Reason{task.ReasonClaimed, task.ReasonReleased}, reasons(&got)[:2])
		require.Zero(t, got.Failures+got.Losses)
		acks, _, _ := m.heard()
		require.Zero(t, acks, "left to be delivered again")
		require.Equal(t, task.Success, got.State, "claimed anew by a search")
		require.NoError(t, b.stop())
	})
}

func TestClaimThatIsWrittenLateIsHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, n int) fault {
			switch {
			case op == "claim":
				return fault{err: errFault, late: 17 * time.Second}
			}
			return fault{}
		}
		ran := 0
		b := startEngine(t, s, map[string]Handler{"email": func(context.Context, Task) (any, error) {
			ran++
			return nil, nil
		}})
		k := s.add("email", 1, func(k *task.Task) { k.Priority = 9 })[0]
		b.bus.signal(k)
		time.Sleep(30 * time.Second)
		got := s.get(k.ID)
		require.Equal(t, []task.Reason{task.ReasonClaimed, task.ReasonReleased}, reasons(&got)[:2])
		require.Less(t, got.History[1].At.Sub(got.History[0].At), 6*time.Second, "at the next beat")
		require.Zero(t, ran, "nothing is run on the ground of an old claim")
		s.mu.Lock()
		s.faults = func(string, int) fault { return fault{} }
		s.mu.Unlock()
		time.Sleep(15 * time.Second)
		require.Equal(t, task.Success, s.get(k.ID).State)
		require.NoError(t, b.stop())
	})
}

func TestClaimsGoOnSoonAfterTheDatabaseWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = during(time.Second, 20*time.Second)
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0)})
		time.Sleep(2 * time.Second)
		var tasks []*task.Task
		for range 12 { // more claims than may be without an answer
			k := s.add("email", 1)[0]
			b.bus.signal(k)
			tasks = append(tasks, k)
			time.Sleep(time.Second)
		}
		require.LessOrEqual(t, len(s.callsOf("claim")), 12)
		time.Sleep(20 * time.Second) // 13 s after the database is back
		for _, k := range tasks {
			require.Equal(t, task.Success, s.get(k.ID).State, k.ID)
		}
		require.NoError(t, b.stop())
	})
}

func TestClaimsAreGatheredWhileOneIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, _ int) fault {
			if op == "claim" || op == "finish" {
				return fault{delay: 5 * time.Millisecond}
			}
			return fault{}
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0), "report": sleeper(0)}, func(o *Options) { o.Slots = 100 })
		for i := range 500 { // one each millisecond
			b.bus.signal(s.add([]string{"email", "report"}[i%2], 1)...)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		for id := range s.tasks {
			require.Equal(t, task.Success, s.get(id).State)
		}
		claims, finishes := len(s.callsOf("claim")), len(s.callsOf("finish"))
		require.Less(t, claims, 150, "about five ids a claim, over all types")
		require.Less(t, finishes, 200)
		require.LessOrEqual(t, s.peak["claim"], maxInFlight)
		require.LessOrEqual(t, s.peak["finish"], maxInFlight)
		require.NoError(t, b.stop())
	})
}

func TestLoneTaskWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0)})
		time.Sleep(time.Minute) // idle
		k := s.add("email", 1, func(k *task.Task) { k.ScheduledAt = time.Now().Add(-time.Second) })[0]
		signalled := time.Now()
		b.bus.signal(k)
		time.Sleep(100 * time.Millisecond)
		got := s.get(k.ID)
		require.Equal(t, task.Success, got.State)
		require.Zero(t, got.History[0].At.Sub(signalled))
		require.Zero(t, got.History[1].At.Sub(signalled))
		require.NoError(t, b.stop())
	})
}

func TestNeverMoreThanFreeSlotsAreClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		w, err := New(Options{MongoURI: "mongodb://fake", Log: testLog(t), Slots: 10})
		require.NoError(t, err)
		HandleFunc(w, "email", sleeper(3*time.Second), Concurrency(4))
		HandleFunc(w, "report", sleeper(2*time.Second))
		b := start(t, w, s)
		for _, name := range []string{"email", "report"} {
			tasks := s.add(name, 60)
			for start := 0; start < 60; start += 20 {
				b.bus.signal(tasks[start : start+20]...)
			}
		}
		for range 60 {
			time.Sleep(time.Second)
			running := map[string]int{}
			s.mu.Lock()
			for _, k := range s.tasks {
				if k.State == task.Running {
					running[k.Type]++
				}
			}
			s.mu.Unlock()
			require.LessOrEqual(t, running["email"], 4)
			require.LessOrEqual(t, running["email"]+running["report"], 10)
		}
		time.Sleep(time.Minute)
		for id := range s.tasks {
			got := s.get(id)
			require.Equal(t, task.Success, got.State)
			require.Equal(t, 1, got.Attempts)
		}
		require.NoError(t, b.stop())
	})
}

func TestClaimsStopWhileTooManyResultsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = during(0, 20*time.Second, "finish")
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0)}, func(o *Options) { o.Slots = 100 })
		tasks := s.add("email", 3000)
		for start := 0; start < len(tasks); start += 60 {
			b.bus.signal(tasks[start : start+60]...)
		}
		time.Sleep(10 * time.Second)
		require.GreaterOrEqual(t, b.finisher.count.Load(), int64(maxUnrecorded))
		require.Less(t, b.finisher.count.Load(), int64(maxUnrecorded+200))
		time.Sleep(30 * time.Second)
		for _, k := range tasks {
			got := s.get(k.ID)
			require.Equal(t, task.Success, got.State)
			require.Equal(t, 1, got.Attempts)
		}
		require.NoError(t, b.stop())
	})
}

func TestStopHandsBackWhatAClaimUnderWayWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, _ int) fault {
			if op == "claim" {
				return fault{delay: time.Second}
			}
			return fault{}
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0)})
		k := s.add("email", 1)[0]
		b.bus.signal(k)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, b.stop())
		got := s.get(k.ID)
		require.Equal(t, []task.Reason{task.ReasonClaimed, task.ReasonReleased}, reasons(&got))
		require.True(t, s.gone)
	})
}

func TestRestOfASignalIsPassedOnWhenNoSlotIsFree(t *testing.T) {
	for name, broken := range map[string]bool{"published": false, "NATS takes nothing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore()
				b := startEngine(t, s, map[string]Handler{"long": sleeper(time.Hour)}, func(o *Options) { o.Slots = 3 })
				time.Sleep(time.Second) // it listens
				lane := b.bus.lane("ax.work.long.stable.normal")
				m := b.bus.signal(s.add("long", 10)...)
				if broken {
					b.bus.fail(errFault)
				}
				time.Sleep(holdBusy / 2)
				acks, _, _ := m.heard()
				require.Zero(t, acks)
				require.Empty(t, lane.waiting())
				time.Sleep(holdBusy * 2)
				acks, naks, _ := m.heard()
				require.Zero(t, naks)
				if broken {
					require.Zero(t, acks, "left to be delivered again")
					require.Empty(t, lane.waiting())
				} else {
					require.Equal(t, 1, acks)
					require.Len(t, lane.waiting(), 1)
					passed, err := events.DecodeSignal(lane.waiting()[0].data)
					require.NoError(t, err)
					require.Len(t, passed.Tasks, 7)
					require.Equal(t, "t-00004", passed.Tasks[0].ID)
				}
				synctest.Wait()
				require.Empty(t, b.intake.held)
				require.NoError(t, b.stop())
			})
		})
	}
}

func TestSignalsWaitForSlotsOfShortTasksOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		b := startEngine(t, s, map[string]Handler{"short": sleeper(10 * time.Millisecond), "long": sleeper(2 * time.Second)}, func(o *Options) { o.Slots = 2 })
		for _, name := range []string{"short", "long"} { // let it learn how long they run
			b.bus.signal(s.add(name, 1)...)
			time.Sleep(5 * time.Second)
		}
		lane := b.bus.lane("ax.work.long.stable.normal")
		for range 5 {
			b.bus.signal(s.add("long", 1)...)
		}
		time.Sleep(time.Second)
		require.Len(t, lane.waiting(), 3, "nothing is held that cannot start soon")
		time.Sleep(10 * time.Second)
		require.Empty(t, lane.waiting())

		fetched := len(s.callsOf("claim"))
		short := b.bus.lane("ax.work.short.stable.normal")
		for range 60 {
			b.bus.signal(s.add("short", 1, func(k *task.Task) { k.ScheduledAt = time.Now().Add(-time.Second) })...)
		}
		time.Sleep(5 * time.Millisecond)
		require.InDelta(t, 60-2-20, len(short.waiting()), 3, "as much is fetched ahead as will start in a tenth of a second")
		time.Sleep(time.Second)
		require.Empty(t, short.waiting())
		require.Less(t, len(s.callsOf("claim"))-fetched, 61)
		require.NoError(t, b.stop())
	})
}

func TestHeldSignalsAreExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, _ int) fault {
			if op == "claim" {
				return fault{delay: 9 * time.Second}
			}
			return fault{}
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0)})
		m := b.bus.signal(s.add("email", 1)...)
		time.Sleep(8 * time.Second)
		acks, _, extensions := m.heard()
		require.GreaterOrEqual(t, extensions, 2, "at least every 5 s")
		require.Zero(t, acks)
		time.Sleep(2 * time.Second)
		acks, _, _ = m.heard()
		require.Equal(t, 1, acks)
		require.NoError(t, b.stop())
	})
}
