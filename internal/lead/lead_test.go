package lead

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("database is away")

// lockState is a lock as the database keeps it, by a clock of its own that synctest drives.
type lockState struct {
	mu    sync.Mutex
	lease task.Lease
	down  atomic.Bool
	hang  atomic.Bool
}

func (l *lockState) wait(ctx context.Context) error {
	if l.hang.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if l.down.Load() {
		return errDown
	}
	return ctx.Err()
}

func (l *lockState) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (task.Lease, error) {
	if err := l.wait(ctx); err != nil {
		return task.Lease{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease.Owner != owner && time.Now().Before(l.lease.Until) {
		return task.Lease{Name: name, Owner: l.lease.Owner}, nil
	}
	if l.lease.Owner != owner {
		l.lease.Epoch++
	}
	l.lease.Name, l.lease.Owner, l.lease.Held, l.lease.Until = name, owner, true, time.Now().Add(ttl)
	return l.lease, nil
}

func (l *lockState) Renew(ctx context.Context, held task.Lease, ttl time.Duration, note string) (task.Lease, error) {
	if err := l.wait(ctx); err != nil {
		return task.Lease{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease.Owner != held.Owner || l.lease.Epoch != held.Epoch {
		return task.Lease{}, task.ErrNotLeader
	}
	l.lease.Until, l.lease.Note = time.Now().Add(ttl), note
	return l.lease, nil
}

func (l *lockState) Release(ctx context.Context, held task.Lease) error {
	if err := l.wait(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease.Owner != held.Owner || l.lease.Epoch != held.Epoch {
		return task.ErrNotLeader
	}
	l.lease.Until = time.Time{}
	return nil
}

func (l *lockState) until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.Until
}

func options(owner string) Options {
	return Options{Name: "reaper", Owner: owner, Log: slog.New(slog.DiscardHandler)}
}

func TestOneLeadsAndHandsOverAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &lockState{}
		var leading atomic.Int32
		epochs := make(chan int64, 8)
		work := func(ctx context.Context, lease task.Lease) error {
			require.EqualValues(t, 1, leading.Add(1), "two leaders at once")
			epochs <- lease.Epoch
			<-ctx.Done()
			leading.Add(-1)
			return ctx.Err()
		}
		first, stopFirst := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { require.NoError(t, Run(first, lock, options("a"), work)) })
		synctest.Wait()
		require.EqualValues(t, 1, <-epochs)

		second, stopSecond := context.WithCancel(t.Context())
		done.Go(func() { require.NoError(t, Run(second, lock, options("b"), work)) })
		time.Sleep(time.Minute)
		require.Empty(t, epochs, "the lock changed hands while its holder renewed it")

		stopFirst()
		at := time.Now()
		require.EqualValues(t, 2, <-epochs)
		require.Less(t, time.Since(at), DefaultTTL/2, "a lock given up at shutdown is not waited for")
		stopSecond()
		done.Wait()
	})
}

func TestWorkEndsBeforeTheLockDoes(t *testing.T) {
	for name, fail := range map[string]func(*lockState){
		"answers with errors": func(l *lockState) { l.down.Store(true) },
		"does not answer":     func(l *lockState) { l.hang.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lock := &lockState{}
				stopped := make(chan time.Time, 8)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				var causes []error
				go func() {
					done <- Run(ctx, lock, options("a"), func(ctx context.Context, _ task.Lease) error {
						<-ctx.Done()
						causes = append(causes, context.Cause(ctx))
						stopped <- time.Now()
						return nil
					})
				}()
				time.Sleep(time.Minute)
				fail(lock)
				require.Less(t, <-stopped, lock.until(), "the work went on after its lock had run out")
				lock.down.Store(false)
				lock.hang.Store(false)
				time.Sleep(time.Minute)
				stop()
				require.NoError(t, <-done)
				require.ErrorIs(t, causes[0], task.ErrNotLeader)
				require.Len(t, causes, 2, "it leads again once the database is back")
			})
		})
	}
}

func TestLostLockStopsWorkAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &lockState{}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		stopped := make(chan time.Time, 8)
		go func() {
			done <- Run(ctx, lock, options("a"), func(ctx context.Context, _ task.Lease) error {
				<-ctx.Done()
				stopped <- time.Now()
				return nil
			})
		}()
		synctest.Wait()
		lock.mu.Lock()
		lock.lease.Owner, lock.lease.Epoch, lock.lease.Until = "b", 7, time.Now().Add(time.Hour)
		lock.mu.Unlock()
		at := time.Now()
		require.Less(t, (<-stopped).Sub(at), DefaultTTL/2)
		stop()
		require.NoError(t, <-done)
	})
}

func TestFailedWorkGivesTheLockUpAndNotesReachTheSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &lockState{}
		opt := options("a")
		opt.Note = func() string { return time.Now().String() }
		reg := prometheus.NewRegistry()
		opt.Registry = reg
		leading := func() float64 {
			families, err := reg.Gather()
			require.NoError(t, err)
			return families[0].GetMetric()[0].GetGauge().GetValue()
		}
		notes := make(chan string, 2)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		failed := false
		var ended time.Time
		go func() {
			done <- Run(ctx, lock, opt, func(ctx context.Context, lease task.Lease) error {
				notes <- lease.Note
				if !failed {
					failed = true
					time.Sleep(time.Minute)
					ended = time.Now()
					return errors.New("cannot go on")
				}
				<-ctx.Done()
				return nil
			})
		}()
		require.Empty(t, <-notes)
		synctest.Wait()
		require.Equal(t, 1.0, leading())
		time.Sleep(time.Minute + time.Millisecond)
		synctest.Wait()
		require.Zero(t, lock.until(), "the lock is free while the work cannot be done here")
		require.Zero(t, leading())
		require.Equal(t, ended.String(), <-notes, "the last note is written when the lock is given up")
		stop()
		require.NoError(t, <-done)
		require.Zero(t, leading())
	})
}

func TestIdentityFitsEverywhereAndNeverRepeats(t *testing.T) {
	a, b := Identity(), Identity()
	require.NotEqual(t, a, b)
	require.Regexp(t, `^[A-Za-z0-9-]{1,70}$`, a)
}
