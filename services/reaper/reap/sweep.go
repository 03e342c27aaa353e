package reap

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// sweeps sweeps again and again until ctx ends: less often while nothing is due, but at least every two periods.
func (r *Reaper) sweeps(ctx context.Context) {
	failing := false
	for wait := r.cfg.Every; pause(ctx, wait); {
		found, err := r.sweep(ctx)
		failing = r.report(ctx, "sweep", err, failing)
		if err := r.mend(ctx); err != nil && ctx.Err() == nil && !failing {
			r.log.Warn("cannot mend after the clock went back; trying again", "err", err)
		}
		if found > 0 || err != nil {
			wait = r.cfg.Every
		} else {
			wait = min(wait*3/2, 2*r.cfg.Every)
		}
	}
}

// sweep ends all that is due, batch by batch, and returns how many tasks it found.
func (r *Reaper) sweep(ctx context.Context) (found int, err error) {
	began := time.Now()
	for {
		now, steady := r.watch.steady(time.Now())
		if !steady {
			return found, nil
		}
		due, err := r.store.SweepCheck(ctx, now.Add(-r.cfg.Grace), r.cfg.Batch)
		if err != nil {
			return found, fmt.Errorf("read what is due: %w", err)
		}
		if found == 0 {
			r.metrics.overdue.Set(overdue(due, now))
		}
		found += len(due)
		ended, err := r.end(ctx, due)
		if err != nil {
			return found, err
		}
		// Where nothing could be ended others were faster, or what is there is not for a sweep; the next one looks again.
		if len(due) < r.cfg.Batch || ended == 0 {
			break
		}
	}
	r.metrics.duration.Observe(time.Since(began).Seconds())
	return found, nil
}

// end ends the tasks of one reading and returns how many it ended.
func (r *Reaper) end(ctx context.Context, due []*task.Task) (ended int, err error) {
	if len(due) == 0 {
		return 0, nil
	}
	// The clock is looked at once more, now that the leases have been read: had it gone back before one of them was written, that
	// lease would look long over. And reading may have taken long, because an outage has begun.
	if err := r.look(ctx); err != nil {
		return 0, err
	}
	at := time.Now()
	now, steady := r.watch.steady(at)
	if !steady {
		return 0, nil
	}
	trusted := r.watch.status(at) == ""
	var running, expired []*task.Task
	for _, t := range due {
		switch {
		case t.State == task.Running && trusted && !t.LeaseUntil.After(now.Add(-r.cfg.Grace)):
			running = append(running, t)
		case !t.State.Terminal() && !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(now):
			expired = append(expired, t)
		}
	}
	if len(running) > 0 {
		// Guarded by the claim and lease that were read: a beat or a report that came meanwhile stands.
		ids, err := r.store.Revive(ctx, running, r.cfg.By)
		if err != nil {
			return ended, fmt.Errorf("revive: %w", err)
		}
		ended += len(ids)
		r.metrics.count(running, ids)
	}
	if len(expired) > 0 {
		ids, err := r.store.Expire(ctx, expired, r.cfg.By)
		if err != nil {
			return ended, fmt.Errorf("expire: %w", err)
		}
		ended += len(ids)
		r.metrics.expired.Add(float64(len(ids)))
	}
	if ended > 0 {
		r.log.Info("swept", "running", len(running), "expired", len(expired), "ended", ended)
	}
	return ended, nil
}

// overdue is by how much the oldest of the tasks found is late.
func overdue(due []*task.Task, now time.Time) float64 {
	oldest := now
	for _, t := range due {
		if t.CheckAt.Before(oldest) {
			oldest = t.CheckAt
		}
	}
	return now.Sub(oldest).Seconds()
}

const (
	mendFor   = time.Minute      // how long leases and start times are pulled in after the clock went back
	mendEvery = 10 * time.Second // a process that has not noticed the step yet goes on writing wrong times for a moment
)

// mending says when leases and start times that lie far ahead are to be pulled in.
type mending struct {
	mu    sync.Mutex
	until time.Time
	last  time.Time
}

func (m *mending) ask(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until, m.last = now.Add(mendFor), time.Time{}
}

func (m *mending) due(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.After(m.until) || now.Sub(m.last) < mendEvery {
		return false
	}
	m.last = now
	return true
}

// mend pulls in what lies so far ahead that only a clock that went back explains it: a lease longer than any lease is, a
// start time in the wake of a creation that has not happened yet. It does so a few times after each step back.
func (r *Reaper) mend(ctx context.Context) error {
	if !r.mending.due(time.Now()) {
		return nil
	}
	now, ok := r.watch.server(time.Now())
	if !ok {
		return nil
	}
	n, err := r.store.Mend(ctx, now, r.cfg.Lease)
	if err != nil {
		return fmt.Errorf("mend: %w", err)
	}
	if n > 0 {
		r.metrics.mended.Add(float64(n))
		r.log.Warn("leases and start times far ahead of the clock were pulled in", "tasks", n)
	}
	return nil
}
