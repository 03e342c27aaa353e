package reap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

// shelf is a store in memory with a clock that can be stepped and answers that can be held back.
type shelf struct {
	mu      sync.Mutex
	step    time.Duration
	primary string
	away    bool // nothing is answered until the caller gives up
	failing error

	tasks   map[string]*task.Task
	workers map[string]task.WorkerInfo
	cursors map[string]time.Time
	ended   map[string]time.Time // by our own clock
	batches []int
	sweeps  []time.Time
	mends   []time.Time
	stuck   bool // nothing can be ended
}

func newShelf() *shelf {
	return &shelf{
		primary: "a:27017", tasks: map[string]*task.Task{}, ended: map[string]time.Time{}, workers: map[string]task.WorkerInfo{},
		cursors: map[string]time.Time{},
	}
}

func (s *shelf) now() time.Time { return time.Now().Add(s.step) }

// enter waits as a call to a database that is away does.
func (s *shelf) enter(ctx context.Context) error {
	s.mu.Lock()
	for s.away {
		s.mu.Unlock()
		if !pause(ctx, 10*time.Millisecond) {
			s.mu.Lock()
			return ctx.Err()
		}
		s.mu.Lock()
	}
	return s.failing
}

func (s *shelf) ServerTime(ctx context.Context) (time.Time, string, error) {
	err := s.enter(ctx)
	defer s.mu.Unlock()
	return s.now(), s.primary, err
}

func (s *shelf) SweepCheck(ctx context.Context, due time.Time, limit int) ([]*task.Task, error) {
	err := s.enter(ctx)
	defer s.mu.Unlock()
	var out []*task.Task
	for _, t := range s.tasks {
		if !t.CheckAt.IsZero() && !t.CheckAt.After(due) {
			c := *t
			out = append(out, &c)
		}
	}
	slices.SortFunc(out, func(a, b *task.Task) int { return a.CheckAt.Compare(b.CheckAt) })
	out = out[:min(limit, len(out))]
	s.batches, s.sweeps = append(s.batches, len(out)), append(s.sweeps, time.Now())
	return out, err
}

func (s *shelf) end(ctx context.Context, read []*task.Task) ([]string, error) {
	err := s.enter(ctx)
	defer s.mu.Unlock()
	if err != nil || s.stuck {
		return nil, err
	}
	var ids []string
	for _, t := range read {
		if now := s.tasks[t.ID]; now != nil && now.LeaseUntil.Equal(t.LeaseUntil) && now.Claim == t.Claim {
			delete(s.tasks, t.ID)
			s.ended[t.ID] = time.Now()
			ids = append(ids, t.ID)
		}
	}
	return ids, nil
}

func (s *shelf) Revive(ctx context.Context, read []*task.Task, by string) ([]string, error) {
	return s.end(ctx, read)
}

func (s *shelf) Expire(ctx context.Context, read []*task.Task, by string) ([]string, error) {
	return s.end(ctx, read)
}

func (s *shelf) Mend(ctx context.Context, now time.Time, lease time.Duration) (int, error) {
	err := s.enter(ctx)
	defer s.mu.Unlock()
	s.mends = append(s.mends, now)
	return 0, err
}

func (s *shelf) Workers(ctx context.Context) ([]task.WorkerInfo, error) {
	err := s.enter(ctx)
	defer s.mu.Unlock()
	var out []task.WorkerInfo
	for _, w := range s.workers {
		out = append(out, w)
	}
	return out, err
}

func (s *shelf) RemoveWorker(ctx context.Context, read task.WorkerInfo) (bool, error) {
	err := s.enter(ctx)
	defer s.mu.Unlock()
	if !s.workers[read.ID].SeenAt.Equal(read.SeenAt) {
		return false, err
	}
	delete(s.workers, read.ID)
	return true, err
}

func (s *shelf) LoadCursor(ctx context.Context, name string) ([]byte, time.Time, error) {
	err := s.enter(ctx)
	defer s.mu.Unlock()
	return []byte("token"), s.cursors[name], err
}

func (s *shelf) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// run adds a running task whose lease ends after the given time.
func (s *shelf) run(id string, lease time.Duration, set ...func(*task.Task)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &task.Task{ID: id, State: task.Running, Claim: "c", MaxLosses: 3, LeaseUntil: s.now().Add(lease)}
	for _, f := range set {
		f(t)
	}
	t.CheckAt = t.LeaseUntil
	s.tasks[id] = t
}

// requireEnded asserts that a task was ended between the two times from now.
func (s *shelf) requireEnded(t *testing.T, id string, since time.Time, least, most time.Duration) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Contains(t, s.ended, id)
	took := s.ended[id].Sub(since)
	require.GreaterOrEqual(t, took, least, id)
	require.LessOrEqual(t, took, most, id)
}

func (s *shelf) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ended)
}

// leader runs a reaper that leads, until the test or stop ends it.
func (s *shelf) leader(t *testing.T, note string, log *slog.Logger) (r *Reaper, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	r = New(Config{Cursors: []string{"notifier", "dispatcher"}}, s, prometheus.NewRegistry(), log)
	var loops sync.WaitGroup
	loops.Go(func() { require.NoError(t, r.Watch(ctx)) })
	loops.Go(func() { require.NoError(t, r.Lead(ctx, task.Lease{Held: true, Note: note})) })
	stop = func() {
		cancel()
		loops.Wait()
	}
	t.Cleanup(stop)
	return r, stop
}

var quiet = slog.New(slog.DiscardHandler)

// freshNote is what a leader left that saw the database just now.
func (s *shelf) freshNote() string {
	w := newWatch(task.DefaultLease, 5*time.Second)
	w.observe(reading{server: s.now(), primary: s.primary, sent: time.Now(), received: time.Now()})
	return w.leave(time.Now())
}

func TestLeasesThatAreOverEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		r, _ := s.leader(t, s.freshNote(), quiet)
		start := time.Now()
		for i := range 50 {
			s.run(fmt.Sprintf("t%d", i), time.Duration(i)*time.Second)
		}
		s.run("alive", time.Hour)
		time.Sleep(time.Minute)
		for i := range 50 {
			over := time.Duration(i) * time.Second
			// The grace, and at most two periods between sweeps with their jitter.
			s.requireEnded(t, fmt.Sprintf("t%d", i), start, over+1500*time.Millisecond, over+1500*time.Millisecond+2200*time.Millisecond)
		}
		require.Equal(t, 50, s.count())
		require.Equal(t, 50.0, testutil.ToFloat64(r.metrics.revived.WithLabelValues("lease_expired")))
	})
}

func TestReasonsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		r, stop := s.leader(t, s.freshNote(), quiet)
		s.run("lost", 0, func(t *task.Task) { t.Losses = 3 })
		s.run("onlyonce", 0, func(t *task.Task) { t.MaxLosses = 0 })
		s.run("timeout", 0, func(t *task.Task) { t.DeadlineAt = t.LeaseUntil })
		s.run("cancelled", 0, func(t *task.Task) { t.CancelRequestedAt, t.Losses = t.LeaseUntil, 3 })
		s.run("again", 0)
		s.run("expired", 0, func(t *task.Task) { t.State, t.ExpiresAt = task.Pending, t.LeaseUntil })
		s.run("waiting", 0, func(t *task.Task) { t.State, t.ExpiresAt = task.Waiting, t.LeaseUntil.Add(time.Hour) })
		time.Sleep(10 * time.Second)
		stop()
		for reason, n := range map[string]float64{"worker_lost": 2, "timeout": 1, "cancelled": 1, "lease_expired": 1} {
			require.Equal(t, n, testutil.ToFloat64(r.metrics.revived.WithLabelValues(reason)), reason)
		}
		require.Equal(t, 1.0, testutil.ToFloat64(r.metrics.expired))
		require.Equal(t, 6, s.count(), "a waiting task that is only to be looked at is not ended")
	})
}

func TestALargeBacklogIsSweptInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		for i := range 1200 {
			s.run(fmt.Sprintf("t%d", i), 0)
		}
		start := time.Now()
		_, stop := s.leader(t, s.freshNote(), quiet)
		time.Sleep(20 * time.Second)
		stop()
		busy := slices.DeleteFunc(slices.Clone(s.batches), func(n int) bool { return n == 0 })
		require.Equal(t, []int{500, 500, 200}, busy)
		for id := range s.ended {
			s.requireEnded(t, id, start, 0, 4*time.Second)
		}
	})
}

func TestWhatCannotBeEndedDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		s.stuck = true
		for i := range 500 {
			s.run(fmt.Sprintf("t%d", i), 0)
		}
		_, stop := s.leader(t, s.freshNote(), quiet)
		time.Sleep(time.Minute)
		stop()
		require.InDelta(t, 60, len(s.batches), 15)
	})
}

func TestShortBeatsAreWatchedMoreOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		ctx, cancel := context.WithCancel(context.Background())
		r := New(Config{Lease: time.Second, Beat: 300 * time.Millisecond}, s, prometheus.NewRegistry(), quiet)
		var loops sync.WaitGroup
		loops.Go(func() { require.NoError(t, r.Watch(ctx)) })
		time.Sleep(10 * time.Second)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			require.Empty(t, r.Status(), "it takes its own pace for an outage")
		}
		cancel()
		loops.Wait()
	})
}

func TestIdleSweepsAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		_, stop := s.leader(t, s.freshNote(), quiet)
		time.Sleep(5 * time.Minute)
		stop()
		require.InDelta(t, 150, len(s.sweeps), 10)
		for i := 1; i < len(s.sweeps); i++ {
			require.LessOrEqual(t, s.sweeps[i].Sub(s.sweeps[i-1]), 2200*time.Millisecond)
		}
	})
}

// What has expired needs nobody's beat: it ends although leases are not judged, unless the clock itself is in doubt.
func TestExpiryDoesNotWaitForLeases(t *testing.T) {
	for name, c := range map[string]struct {
		disturb func(*shelf)
		waits   bool
	}{
		"another primary": {func(s *shelf) { s.set(func() { s.primary = "b:27017" }) }, false},
		"an hour forward": {func(s *shelf) { s.set(func() { s.step = time.Hour }) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				r, _ := s.leader(t, s.freshNote(), quiet)
				time.Sleep(40 * time.Second)
				c.disturb(s)
				time.Sleep(2 * time.Second)
				require.NotEmpty(t, r.Status())
				s.run("dead", -time.Minute)
				s.set(func() {
					at := s.now().Add(time.Second)
					s.tasks["expires"] = &task.Task{ID: "expires", State: task.Pending, ExpiresAt: at, CheckAt: at}
				})
				from := time.Now()
				time.Sleep(40 * time.Second)
				least, most := time.Second, 6*time.Second
				if c.waits {
					least, most = 25*time.Second, 34*time.Second
				}
				s.requireEnded(t, "expires", from, least, most)
				s.requireEnded(t, "dead", from, 25*time.Second, 34*time.Second)
			})
		})
	}
}

func TestDisturbancesReviveNothingForOneLease(t *testing.T) {
	for name, disturb := range map[string]func(*shelf){
		"silence of 12 s": func(s *shelf) {
			s.set(func() { s.away = true })
			time.Sleep(12 * time.Second)
			s.set(func() { s.away = false })
		},
		"another primary": func(s *shelf) { s.set(func() { s.primary = "b:27017" }) },
		"an hour forward": func(s *shelf) { s.set(func() { s.step = time.Hour }) },
		"an hour back": func(s *shelf) {
			s.set(func() { s.step = -time.Hour })
			s.run("dead", 0) // its last beat came after the step: before the step is noticed, the lease looks an hour old
		},
		"errors for 12 seconds": func(s *shelf) {
			s.set(func() { s.failing = errors.New("no primary") })
			time.Sleep(12 * time.Second)
			s.set(func() { s.failing = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				r, _ := s.leader(t, s.freshNote(), quiet)
				time.Sleep(40 * time.Second)
				for i := range 100 { // of live workers: each beats again within a beat once the database answers
					s.run(fmt.Sprintf("live%d", i), 3*time.Second)
				}
				s.run("dead", 3*time.Second)
				disturb(s)
				back := time.Now()
				time.Sleep(2 * time.Second) // the reading that tells of it
				require.NotEmpty(t, r.Status())
				for range 5 {
					time.Sleep(5 * time.Second)
					for i := range 100 {
						s.run(fmt.Sprintf("live%d", i), 30*time.Second)
					}
				}
				require.Zero(t, s.count(), "revived within a lease of the disturbance")
				time.Sleep(10 * time.Second)
				s.requireEnded(t, "dead", back, 30*time.Second, 34*time.Second)
				require.Equal(t, 1, s.count())
				require.Empty(t, r.Status())
			})
		})
	}
}

func TestANewLeaderDoesNotSweepForBeingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		s.run("dead", 0)
		start := time.Now()
		_, stop := s.leader(t, "", quiet) // nobody led before, or nobody knows
		time.Sleep(29 * time.Second)
		require.Zero(t, s.count())
		time.Sleep(10 * time.Second)
		s.requireEnded(t, "dead", start, 30*time.Second, 34*time.Second)
		stop()

		for name, c := range map[string]struct {
			ago   time.Duration
			least time.Duration
		}{"restarted at once": {2 * time.Second, 0}, "restarted late": {16 * time.Second, 30 * time.Second}} {
			note := s.freshNote()
			time.Sleep(c.ago)
			s.run(name, -time.Minute)
			start := time.Now()
			_, stop := s.leader(t, note, quiet)
			time.Sleep(40 * time.Second)
			s.requireEnded(t, name, start, c.least, c.least+4*time.Second)
			stop()
		}
	})
}

func TestStandbyThatHasWatchedNeedsNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r := New(Config{}, s, prometheus.NewRegistry(), quiet)
		var loops sync.WaitGroup
		loops.Go(func() { require.NoError(t, r.Watch(ctx)) })
		time.Sleep(45 * time.Second)
		s.run("dead", -time.Minute)
		start := time.Now()
		loops.Go(func() { require.NoError(t, r.Lead(ctx, task.Lease{Held: true})) })
		time.Sleep(10 * time.Second)
		s.requireEnded(t, "dead", start, 0, 4*time.Second)
		cancel()
		loops.Wait()
	})
}

func TestAStepBackIsMendedAFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		_, stop := s.leader(t, s.freshNote(), quiet)
		time.Sleep(40 * time.Second)
		s.set(func() { require.Empty(t, s.mends); s.step = time.Hour })
		time.Sleep(40 * time.Second)
		s.set(func() { require.Empty(t, s.mends, "a step forward leaves nothing far ahead"); s.step = 0 })
		back := s.now()
		time.Sleep(5 * time.Minute)
		stop()
		require.InDelta(t, 6, len(s.mends), 1)
		require.Less(t, s.mends[0].Sub(back), 5*time.Second)
		require.Greater(t, s.mends[len(s.mends)-1].Sub(back), 40*time.Second, "beyond the time others take to notice the step")
	})
}

func TestWorkersThatStoppedBeatingAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		r, stop := s.leader(t, "", quiet)
		beat := func(id string) { s.set(func() { s.workers[id] = task.WorkerInfo{ID: id, SeenAt: s.now()} }) }
		beat("gone")
		for range 5 {
			beat("alive")
			time.Sleep(5 * time.Second)
		}
		s.set(func() { require.Len(t, s.workers, 2, "not while the database's answers cannot be relied on") })
		for range 3 {
			beat("alive")
			time.Sleep(5 * time.Second)
		}
		stop()
		require.Contains(t, s.workers, "alive")
		require.NotContains(t, s.workers, "gone")
		require.Equal(t, 1.0, testutil.ToFloat64(r.metrics.workersLost))
		require.Equal(t, 1.0, testutil.ToFloat64(r.metrics.workers))
	})
}

func TestAnOldCursorIsAnAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		s := newShelf()
		s.cursors["notifier"] = s.now()
		r, stop := s.leader(t, s.freshNote(), slog.New(slog.NewTextHandler(&said, nil)))
		for range 10 {
			time.Sleep(20 * time.Second)
			s.set(func() { s.cursors["notifier"] = s.now() })
		}
		s.set(func() { s.cursors["dispatcher"] = s.now().Add(-61 * time.Minute) })
		time.Sleep(time.Minute)
		stop()
		require.Less(t, testutil.ToFloat64(r.metrics.cursorAge.WithLabelValues("notifier")), 70.0)
		require.Greater(t, testutil.ToFloat64(r.metrics.cursorAge.WithLabelValues("dispatcher")), 3600.0)
		require.Contains(t, said.String(), "cursor=dispatcher")
		require.NotContains(t, said.String(), "cursor=notifier")
	})
}
