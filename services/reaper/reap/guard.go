package reap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// missedBeats is how many beats a worker may miss before it counts as gone.
const missedBeats = 3

// forgetWorkers removes workers that stopped beating from the registry. Their tasks come back with the end of their leases
// and no sooner: a worker that only lost its way to the registry may still be at work.
func (r *Reaper) forgetWorkers(ctx context.Context) error {
	now, trusted := r.watch.now(time.Now())
	if !trusted {
		return nil
	}
	workers, err := r.store.Workers(ctx)
	if err != nil {
		return fmt.Errorf("read workers: %w", err)
	}
	alive := 0
	for _, w := range workers {
		silence := now.Sub(w.SeenAt)
		if silence <= missedBeats*r.cfg.Beat+r.cfg.Grace {
			alive++
			continue
		}
		// Guarded by the beat that was read: a worker that comes back in this moment stays.
		removed, err := r.store.RemoveWorker(ctx, w)
		if err != nil {
			return fmt.Errorf("remove worker: %w", err)
		}
		if removed {
			r.metrics.workersLost.Inc()
			r.log.Warn("a worker stopped beating and was removed", "worker_id", w.ID, "host", w.Host, "silence", silence.Round(time.Second))
		}
	}
	r.metrics.workers.Set(float64(alive))
	return nil
}

// checkCursors raises the alarm for a reader of the change stream that has not come forward for long: its events or signals
// are late, and once the stream's history is shorter than its lag they have to be made again.
func (r *Reaper) checkCursors(ctx context.Context) error {
	var failed error
	for _, name := range r.cfg.Cursors {
		_, at, err := r.store.LoadCursor(ctx, name)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("load cursor %s: %w", name, err))
			continue
		}
		now, known := r.watch.server(time.Now())
		if at.IsZero() || !known {
			continue
		}
		age := max(0, now.Sub(at))
		r.metrics.cursorAge.WithLabelValues(name).Set(age.Seconds())
		if age > r.cfg.CursorLimit {
			r.log.Error("a place in the change stream is old: its reader is down or cannot keep up", "cursor", name, "age", age.Round(time.Second))
		}
	}
	return failed
}

// reasonOf tells how the store ended a running task, for the metrics: by the same rules, from the task as it was read.
func reasonOf(t *task.Task) task.Reason {
	switch {
	case !t.CancelRequestedAt.IsZero():
		return task.ReasonCancelled
	case t.Losses+1 > t.MaxLosses:
		return task.ReasonWorkerLost
	case !t.DeadlineAt.IsZero() && !t.LeaseUntil.Before(t.DeadlineAt): // no lease goes beyond the deadline
		return task.ReasonTimeout
	}
	return task.ReasonLeaseExpired
}
