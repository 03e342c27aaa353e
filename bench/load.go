package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/pkg/client"
)

const (
	burstTasks = 20_000
	publishers = 500 // tasks of one publish call
	steadyFor  = 20 * time.Second
	idleFor    = 15 * time.Second
	settle     = 2 * time.Second // between measurements: what the one before left behind runs out
)

// burst publishes 20,000 tasks as fast as it can and returns tasks a second from the first publish to the last recorded success, by
// the database's own times, and how long after that the last completion event came.
func (r *rig) burst(ctx context.Context) (perSecond float64, eventLag time.Duration, cpu map[string]time.Duration, err error) {
	before, err := r.usage()
	if err != nil {
		return 0, 0, nil, err
	}
	first := r.ended.Load()
	serverBegan, _, err := r.store.Now()
	if err != nil {
		return 0, 0, nil, err
	}
	for n := 0; n < burstTasks; n += publishers {
		batch := make([]client.Task, publishers)
		for i := range batch {
			batch[i] = client.NewTask(noopType, noop{Published: ledger.Now()})
		}
		if err := firstError(r.client.Publish(ctx, batch...)); err != nil {
			return 0, 0, nil, err
		}
	}
	if err := until(ctx, 3*time.Minute, func() (bool, error) { return r.ended.Load()-first >= burstTasks, nil }); err != nil {
		return 0, 0, nil, fmt.Errorf("burst: %d of %d ended: %w", r.ended.Load()-first, burstTasks, err)
	}
	lastEvent, _, err := r.store.Now()
	if err != nil {
		return 0, 0, nil, err
	}
	after, err := r.usage()
	if err != nil {
		return 0, 0, nil, err
	}
	lastSuccess, n, err := r.lastFinished(ctx, serverBegan.Add(-time.Second), lastEvent.Add(time.Second))
	if err != nil {
		return 0, 0, nil, err
	}
	if n != burstTasks {
		return 0, 0, nil, fmt.Errorf("burst: %d tasks are recorded as finished, want %d", n, burstTasks)
	}
	cpu = map[string]time.Duration{}
	for name := range after {
		cpu[name] = (after[name].cpu - before[name].cpu) / burstTasks
	}
	return burstTasks / lastSuccess.Sub(serverBegan).Seconds(), lastEvent.Sub(lastSuccess), cpu, nil
}

// lastFinished reads the finished tasks of a stretch of time in small windows.
func (r *rig) lastFinished(ctx context.Context, from, to time.Time) (last time.Time, n int, err error) {
	const window, page = 200 * time.Millisecond, 10_000
	for ; from.Before(to); from = from.Add(window) {
		tasks, err := r.store.FinishedBetween(ctx, from, from.Add(window), page)
		if err != nil {
			return last, n, err
		}
		for _, t := range tasks {
			if t.FinishedAt.After(last) {
				last = t.FinishedAt
			}
		}
		n += len(tasks)
	}
	return last, n, nil
}

// steady publishes single tasks at an even rate and returns the times from each publish to the start of its handler.
func (r *rig) steady(ctx context.Context, perSecond int, skip int) ([]time.Duration, error) {
	published, err := r.publishEvenly(ctx, perSecond, steadyFor) // many users, each with one task
	if err != nil {
		return nil, fmt.Errorf("steady: %w", err)
	}
	runs, err := r.starts(ctx, skip, len(published))
	if err != nil {
		return nil, fmt.Errorf("steady: %w", err)
	}
	waits := make([]time.Duration, len(runs))
	for i, run := range runs {
		waits[i] = time.Duration(run.Waited)
	}
	return sorted(waits), nil
}

// idle returns the share of one core that the services use while nothing is to be done.
func (r *rig) idle(ctx context.Context) (share float64, err error) {
	before, err := r.usage()
	if err != nil {
		return 0, err
	}
	if err := wait(ctx, idleFor); err != nil {
		return 0, err
	}
	after, err := r.usage()
	if err != nil {
		return 0, err
	}
	return spent(onlyServices(before), onlyServices(after)).Seconds() / idleFor.Seconds(), nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
