package worker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

// These tests run in bubbles: their clock jumps to the next thing that happens, so the times in them are exact.

func sleeper(d time.Duration) Handler {
	return func(ctx context.Context, _ Task) (any, error) {
		if !pause(ctx, d) {
			return nil, ctx.Err()
		}
		return "done", nil
	}
}

func TestResultIsSentAgainUntilItIsRecorded(t *testing.T) {
	for name, lost := range map[string]bool{"not written": false, "written, answer lost": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore()
				down := during(2*time.Second, 60*time.Second, "finish") // longer than an election, than a lease, and than two
				s.faults = func(op string, n int) fault {
					f := down(op, n)
					f.lost = lost
					return f
				}
				metrics := prometheus.NewRegistry()
				b := startEngine(t, s, map[string]Handler{"email": sleeper(3 * time.Second)}, func(o *Options) { o.Registerer = metrics })
				tasks := s.add("email", 5)
				b.bus.signal(tasks...)
				for range 70 {
					time.Sleep(time.Second)
					s.reap()
				}
				for _, k := range tasks {
					got := s.get(k.ID)
					require.Equal(t, task.Success, got.State)
					require.Equal(t, 1, got.Attempts, "beats kept the lease meanwhile")
					require.Equal(t, []task.Reason{task.ReasonClaimed, task.ReasonSucceeded}, reasons(&got))
				}
				require.Zero(t, b.finisher.count.Load())
				require.Greater(t, len(s.callsOf("finish")), 20)
				require.Zero(t, counted(t, metrics, "ax_worker_lease_lost_total"), "a beat that finds it recorded says nothing of a loss")
				require.NoError(t, b.stop())
			})
		})
	}
}

func TestHandlerIsCancelledBeforeItsLeaseCanEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		begun := time.Now()
		metrics := prometheus.NewRegistry()
		type ended struct {
			after time.Duration
			cause error
		}
		causes := make(chan ended, 1)
		var mu sync.Mutex
		var confirmed []time.Duration
		b := startEngine(t, s, map[string]Handler{"email": func(ctx context.Context, k Task) (any, error) {
			if k.Attempt > 1 {
				return "second", nil
			}
			<-ctx.Done()
			causes <- ended{time.Since(begun), context.Cause(ctx)}
			return "too late", nil // never reported
		}}, func(o *Options) {
			o.Registerer = metrics
			o.Confirmed = func(_ string, until time.Time) {
				mu.Lock()
				defer mu.Unlock()
				confirmed = append(confirmed, until.Sub(begun))
			}
		})
		k := s.add("email", 1)[0]
		b.bus.signal(k)
		time.Sleep(12 * time.Second)
		beats := s.callsOf("heartbeat")
		s.mu.Lock()
		s.faults = during(0, 40*time.Second)
		s.mu.Unlock()
		e := <-causes
		require.ErrorIs(t, e.cause, ErrLeaseLost)
		fence := beats[len(beats)-1].at.Sub(begun) + 24*time.Second
		require.GreaterOrEqual(t, e.after, fence, "not before it must")
		require.Less(t, e.after, fence+time.Second)
		synctest.Wait()
		mu.Lock()
		require.Len(t, confirmed, 1+len(beats), "by its claim and each beat that was answered")
		require.Equal(t, fence, confirmed[len(beats)], "audits are told what the worker goes by")
		mu.Unlock()
		require.Equal(t, 1.0, counted(t, metrics, "ax_worker_fenced_total"))

		time.Sleep(40 * time.Second) // no reaper came: contact is back, and the task is handed back
		got := s.get(k.ID)
		require.Equal(t, task.ReasonReleased, got.History[1].Reason)
		for _, c := range s.callsOf("finish") {
			require.NotContains(t, c.kinds[:1], task.FailedAttempt)
		}
		require.Equal(t, task.Success, got.State, "and run anew, found by a search")
		require.Equal(t, `"second"`, string(got.Result))
		require.NoError(t, b.stop())
	})
}

func TestReturnAfterTheLeaseMayBeOverIsNoResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = during(0, time.Hour, "heartbeat")
		var cause error
		b := startEngine(t, s, map[string]Handler{"email": func(ctx context.Context, k Task) (any, error) {
			if k.Attempt == 1 {
				time.Sleep(24*time.Second + 200*time.Millisecond) // returns before the loop that fences comes round
				cause = context.Cause(ctx)
			}
			return "done", nil
		}})
		time.Sleep(100 * time.Millisecond) // between two rounds of that loop
		k := s.add("email", 1)[0]
		b.bus.signal(k)
		time.Sleep(25 * time.Second)
		synctest.Wait()
		got := s.get(k.ID)
		require.NoError(t, cause, "the loop has not come round")
		require.Equal(t, task.ReasonReleased, got.History[1].Reason)
		require.NoError(t, b.stop())
	})
}

func TestFencedTaskThatMayLoseNoWorkerIsNotHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = during(0, time.Hour, "heartbeat")
		metrics := prometheus.NewRegistry()
		b := startEngine(t, s, map[string]Handler{"email": sleeper(time.Hour)}, func(o *Options) { o.Registerer = metrics })
		k := s.add("email", 1, func(k *task.Task) { k.MaxLosses = 0 })[0]
		b.bus.signal(k)
		time.Sleep(time.Minute)
		require.Equal(t, 1.0, counted(t, metrics, "ax_worker_fenced_total"))
		got := s.get(k.ID)
		require.Equal(t, []task.Reason{task.ReasonClaimed}, reasons(&got), "left to its lease")
		require.NoError(t, b.stop())
	})
}

func TestFencedTaskThatWasRevivedMeanwhileIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		metrics := prometheus.NewRegistry()
		b := startEngine(t, s, map[string]Handler{"email": func(ctx context.Context, _ Task) (any, error) {
			<-ctx.Done()
			return nil, errors.New("stopped")
		}}, func(o *Options) { o.Registerer = metrics })
		k := s.add("email", 1)[0]
		b.bus.signal(k)
		time.Sleep(time.Second)
		s.mu.Lock()
		s.faults = during(0, 50*time.Second)
		s.mu.Unlock()
		time.Sleep(45 * time.Second)
		s.reap()
		s.mu.Lock()
		other := s.tasks[k.ID] // another worker has it now
		other.State, other.Claim, other.LeaseUntil = task.Running, "another", time.Now().Add(time.Hour)
		s.mu.Unlock()
		time.Sleep(10 * time.Second)
		got := s.get(k.ID)
		require.Equal(t, "another", got.Claim)
		require.Equal(t, task.Running, got.State)
		require.Zero(t, got.Failures)
		require.Equal(t, 1.0, counted(t, metrics, "ax_worker_lease_lost_total"))
		require.Zero(t, b.finisher.count.Load())
		require.NoError(t, b.stop())
	})
}

func TestResultIsGivenUpOneLeaseAfterItsLeaseIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		metrics := prometheus.NewRegistry()
		b := startEngine(t, s, map[string]Handler{"email": sleeper(3 * time.Second)}, func(o *Options) { o.Registerer = metrics })
		b.bus.signal(s.add("email", 3)...)
		time.Sleep(time.Second)
		s.mu.Lock()
		s.faults = during(0, time.Hour)
		s.mu.Unlock()
		time.Sleep(50 * time.Second)
		require.EqualValues(t, 3, b.finisher.count.Load(), "still tried")
		time.Sleep(20 * time.Second)
		require.Zero(t, b.finisher.count.Load())
		require.Empty(t, b.runs.open)
		require.Equal(t, 3.0, counted(t, metrics, "ax_worker_results_given_up_total"))
		require.NoError(t, b.stop())
	})
}

func TestOneResultThatIsRefusedHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		metrics := prometheus.NewRegistry()
		b := startEngine(t, s, map[string]Handler{"email": sleeper(time.Second)}, func(o *Options) { o.Registerer = metrics })
		tasks := s.add("email", 20)
		poison := tasks[7].ID
		s.mu.Lock()
		s.faults = func(op string, _ int) fault {
			if c := s.calls[len(s.calls)-1]; op == "finish" {
				for _, id := range c.ids {
					if id == poison {
						return fault{err: errFault}
					}
				}
			}
			return fault{}
		}
		s.mu.Unlock()
		b.bus.signal(tasks...)
		time.Sleep(10 * time.Second)
		for _, k := range tasks {
			if k.ID != poison {
				require.Equal(t, task.Success, s.get(k.ID).State)
			}
		}
		for range 30 { // others come and go
			b.bus.signal(s.add("email", 1)...)
			time.Sleep(2 * time.Second)
		}
		require.Zero(t, b.finisher.count.Load())
		require.Equal(t, 1.0, counted(t, metrics, "ax_worker_results_given_up_total"))
		time.Sleep(time.Minute)
		s.reap()
		require.Equal(t, 1, s.get(poison).Losses, "its lease was left to end")
		require.NoError(t, b.stop())
	})
}

func TestHeartbeatWhoseAnswerIsLostChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, n int) fault {
			if op == "heartbeat" && n%2 == 1 {
				return fault{err: errFault, lost: true}
			}
			return fault{}
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(2 * time.Minute)})
		k := s.add("email", 1)[0]
		b.bus.signal(k)
		for range 130 {
			time.Sleep(time.Second)
			s.reap()
		}
		got := s.get(k.ID)
		require.Equal(t, []task.Reason{task.ReasonClaimed, task.ReasonSucceeded}, reasons(&got))
		require.NoError(t, b.stop())
	})
}

func TestBeatNeverTakesLongerThanLeasesAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, n int) fault {
			if op == "heartbeat" && n <= 2 || op == "resolve" || op == "worker" {
				return fault{delay: time.Hour} // hangs
			}
			return fault{}
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(time.Minute)})
		k := s.add("email", 1)[0]
		b.bus.signal(k)
		for range 70 {
			time.Sleep(time.Second)
			s.reap()
		}
		require.Equal(t, task.Success, s.get(k.ID).State)
		require.NoError(t, b.stop())
	})
}

func TestNothingIsForgottenWhenHandlersReturnAtAStop(t *testing.T) {
	for range 100 { // the order in which goroutines get on is another one each time
		synctest.Test(t, func(t *testing.T) {
			s := newFakeStore()
			b := startEngine(t, s, map[string]Handler{"email": func(ctx context.Context, _ Task) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}})
			tasks := s.add("email", 5)
			tasks[0].Timeout = 2500*time.Millisecond + time.Second // at the moment of the end
			b.bus.signal(tasks...)
			time.Sleep(time.Second)
			require.NoError(t, b.stop())
			for _, k := range tasks {
				got := s.get(k.ID)
				require.Equal(t, task.Pending, got.State, "%v", reasons(&got))
				require.Len(t, got.History, 2)
			}
		})
	}
}

func TestStopLooksOnceMoreForAClaimWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, n int) fault {
			switch {
			case op == "claim":
				return fault{err: errFault, late: time.Second}
			case op == "finish":
				return fault{delay: 50 * time.Millisecond}
			}
			return fault{}
		}
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0)})
		k := s.add("email", 1)[0]
		time.Sleep(6 * time.Second) // after a beat
		b.bus.signal(k)
		time.Sleep(2 * time.Second) // before the next one
		require.NoError(t, b.stop())
		require.Equal(t, task.Pending, s.get(k.ID).State)
		require.Len(t, s.get(k.ID).History, 2)
	})
}

func TestStopNeverTakesLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		b := startEngine(t, s, map[string]Handler{"email": sleeper(time.Second), "long": sleeper(time.Hour)})
		b.bus.signal(s.add("email", 3)...)
		b.bus.signal(s.add("long", 3)...)
		time.Sleep(500 * time.Millisecond)
		s.mu.Lock()
		s.faults = func(string, int) fault { return fault{delay: time.Hour} } // everything hangs
		s.mu.Unlock()
		b.bus.signal(s.add("email", 3)...)
		time.Sleep(time.Second)
		begun := time.Now()
		require.ErrorContains(t, b.stop(), "could not be recorded")
		require.LessOrEqual(t, time.Since(begun), 12*time.Second)
	})
}

func TestTimedOutAttemptIsNotExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		release := make(chan struct{})
		b := startEngine(t, s, map[string]Handler{"deaf": func(context.Context, Task) (any, error) {
			<-release
			return "late", nil
		}}, func(o *Options) { o.Slots = 1 })
		k := s.add("deaf", 1, func(k *task.Task) { k.Timeout = 7 * time.Second })[0]
		b.bus.signal(k)
		time.Sleep(8 * time.Second)
		got := s.get(k.ID)
		require.Equal(t, task.ReasonRetry, got.History[1].Reason)
		require.Equal(t, 7*time.Second, got.History[1].At.Sub(got.History[0].At))
		before := len(s.callsOf("heartbeat"))
		time.Sleep(time.Minute)
		require.Len(t, s.callsOf("heartbeat"), before, "nothing is owned any more")
		require.Error(t, b.health())
		require.Equal(t, 1, s.get(k.ID).Attempts, "no slot for the next attempt")
		close(release)
		time.Sleep(time.Minute)
		require.NoError(t, b.health())
		require.NoError(t, b.stop())
	})
}

func TestWorkerWarnsOfAnotherProcessWithItsID(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		entry task.WorkerInfo
		age   time.Duration
		warns bool
	}{
		"another host":    {task.WorkerInfo{ID: "w1", Host: "elsewhere", PID: os.Getpid()}, time.Second, true},
		"another process": {task.WorkerInfo{ID: "w1", Host: host, PID: os.Getpid() + 1}, time.Second, true},
		"itself":          {task.WorkerInfo{ID: "w1", Host: host, PID: os.Getpid()}, time.Second, false},
		"another id":      {task.WorkerInfo{ID: "w2", Host: "elsewhere", PID: 1}, time.Second, false},
		"long gone":       {task.WorkerInfo{ID: "w1", Host: "elsewhere", PID: 1}, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := newFakeStore()
				s.faults = during(0, 2*time.Second, "workers") // it asks until it is told
				c.entry.SeenAt = time.Now().Add(-c.age)
				s.roster = []task.WorkerInfo{c.entry}
				b := startEngine(t, s, map[string]Handler{"email": sleeper(0)}, func(o *Options) {
					o.ID, o.Log = "w1", slog.New(slog.NewTextHandler(&log, nil))
				})
				time.Sleep(20 * time.Second)
				require.NoError(t, b.stop())
				want := 0
				if c.warns {
					want = 1
				}
				require.Equal(t, want, strings.Count(log.String(), "another process has used this worker's id"), log.String())
			})
		})
	}
}
