package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestOnce(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	var charges atomic.Int64
	Handle(w, "charge", func(ctx context.Context, _ numbered) (doubled, error) {
		return Once(ctx, "order-7", func(context.Context) (doubled, error) {
			if charges.Add(1) == 1 {
				return doubled{}, errors.New("nothing was charged")
			}
			return doubled{7}, nil
		})
	})
	r.run(w)
	first := r.submit("charge", 1)[0]
	r.signal(r.await(first.ID, "failed once", func(k *task.Task) bool { return k.State == task.Pending && k.Failures == 1 }))
	require.JSONEq(t, `{"twice":7}`, string(r.awaitState(first.ID, task.Success).Result))
	for _, k := range r.submit("charge", 5) {
		require.JSONEq(t, `{"twice":7}`, string(r.awaitState(k.ID, task.Success).Result))
	}
	require.EqualValues(t, 2, charges.Load())
	_, err := Once(t.Context(), "x", func(context.Context) (int, error) { return 0, nil })
	require.ErrorIs(t, err, ErrNoTask)
}

// The database tells executions apart; goroutines of one handler wait for each other.
func TestOnceAmongGoroutinesOfOneHandler(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	var charges, failed atomic.Int64
	g := newGate()
	Handle(w, "charge", func(ctx context.Context, _ numbered) (bool, error) {
		var all errgroup.Group
		for range 5 {
			all.Go(func() error {
				value, err := Once(ctx, "order-7", func(ctx context.Context) (int, error) {
					if charges.Add(1) == 1 {
						return 0, errors.Join(g.pass(ctx), errors.New("nothing was charged"))
					}
					return 7, nil
				})
				switch {
				case err != nil:
					failed.Add(1)
				case value != 7:
					return fmt.Errorf("got %d", value)
				}
				return nil
			})
		}
		return true, all.Wait()
	})
	r.run(w)
	one := r.submit("charge", 1)[0]
	g.awaitEntry(t)
	require.EqualValues(t, 1, charges.Load(), "the others wait")
	close(g.open)
	r.awaitState(one.ID, task.Success)
	require.EqualValues(t, 1, failed.Load())
	require.EqualValues(t, 2, charges.Load(), "one failed, one did it, and three found it done")
}

func TestOnceInsideOfItselfIsRefused(t *testing.T) {
	r := newRig(t)
	w := r.worker()
	Handle(w, "charge", func(ctx context.Context, _ numbered) (int, error) {
		return Once(ctx, "a", func(ctx context.Context) (int, error) {
			if _, err := Once(ctx, "b", func(context.Context) (int, error) { return 1, nil }); err != nil {
				return 0, err
			}
			return Once(ctx, "a", func(context.Context) (int, error) { return 2, nil })
		})
	})
	r.run(w)
	failed := r.awaitState(r.submit("charge", 1)[0].ID, task.Failed)
	require.Contains(t, failed.LastError.Message, "inside of its own function")
}

func TestOnceWhileAnotherIsInsideSnoozes(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := newRig(t)
	w := r.worker()
	g := newGate()
	Handle(w, "charge", func(ctx context.Context, _ numbered) (int, error) {
		return Once(ctx, "order-7", func(ctx context.Context) (int, error) { return 5, g.pass(ctx) })
	})
	r.run(w)
	first := r.submit("charge", 1)[0]
	g.awaitEntry(t)
	second := r.submit("charge", 1)[0]
	waits := r.await(second.ID, "is snoozed", func(k *task.Task) bool { return k.State == task.Pending && k.Attempts == 1 })
	require.Zero(t, waits.Failures)
	close(g.open)
	require.Equal(t, "5", string(r.awaitState(first.ID, task.Success).Result))
	r.signal(waits)
	require.Equal(t, "5", string(r.awaitState(second.ID, task.Success).Result), "found without a signal of the dispatcher, too")
}

func TestOnceIsRenewedWhileItRunsAndFencedWhenItCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		inner := make(chan error, 1)
		b := startEngine(t, s, map[string]Handler{"charge": func(ctx context.Context, k Task) (any, error) {
			return Once(ctx, "key", func(ctx context.Context) (int, error) {
				if !pause(ctx, 2*time.Minute) {
					inner <- context.Cause(ctx)
					return 0, ctx.Err()
				}
				return 1, nil
			})
		}})
		k := s.add("charge", 1)[0]
		b.bus.signal(k)
		for range 100 {
			time.Sleep(time.Second)
			s.mu.Lock()
			require.True(t, s.once["key"].until.After(time.Now()), "the reservation never ends before fn does")
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.faults = during(0, time.Hour, "begin once")
		until := s.once["key"].until
		s.mu.Unlock()
		require.ErrorIs(t, <-inner, ErrLeaseLost)
		require.True(t, time.Now().Before(until))
		require.NoError(t, b.stop())
	})
}

func TestOnceSurvivesAMomentWithoutTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.faults = func(op string, n int) fault {
			if (op == "begin once" || op == "complete once") && n == 1 {
				return fault{err: errFault, lost: op == "complete once"}
			}
			return fault{}
		}
		calls := 0
		b := startEngine(t, s, map[string]Handler{"charge": func(ctx context.Context, _ Task) (any, error) {
			return Once(ctx, "key", func(context.Context) (int, error) { calls++; return 8, nil })
		}})
		k := s.add("charge", 1)[0]
		b.bus.signal(k)
		time.Sleep(10 * time.Second)
		require.Equal(t, "8", string(s.get(k.ID).Result))
		require.Equal(t, 1, calls)
		require.NoError(t, b.stop())
	})
}
