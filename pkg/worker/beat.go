package worker

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// beats extends the leases of all executions in one call every so often, keeps the worker's entry in the registry fresh, and
// looks for what claims of unknown outcome hold. Cancels and lost leases come back with the answers.
type beats struct {
	store   store
	runs    *runs
	claimer *claimer
	info    task.WorkerInfo
	lease   time.Duration
	every   time.Duration
	log     *quietLog
	metrics *metrics
	lost    func(e *execution)
	looked  bool // for another process with this worker's id
}

// run beats until ctx ends.
func (b *beats) run(ctx context.Context) {
	wait, failures := time.Duration(0), 0 // the first one registers the worker
	for pause(ctx, wait) {
		if err := b.beat(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			failures++
			b.metrics.beatFailures.Inc()
			b.log.warn("heartbeat failed, trying on", "err", err)
			wait = min(backoff(failures, b.every/10, time.Second), b.every)
			continue
		}
		failures = 0
		wait = jitter(b.every)
	}
}

func (b *beats) beat(ctx context.Context) error {
	if owned := b.runs.owned(); len(owned) > 0 {
		if err := b.extend(ctx, owned); err != nil {
			return err
		}
	}
	// The rest must not make the next beat late.
	ctx, cancel := context.WithTimeout(ctx, b.lease/10)
	defer cancel()
	if !b.looked {
		b.looked = b.lookForTwin(ctx)
	}
	if err := b.store.BeatWorker(ctx, b.info); err != nil {
		b.log.warn("the worker's entry cannot be refreshed, trying on", "err", err) // shown as gone meanwhile; no lease hangs on it
	}
	b.claimer.resolve(ctx)
	b.runs.flushProgress(ctx)
	return nil
}

// lookForTwin warns of another process that beats under this worker's id, before the entry becomes this one's. It reports whether
// the database could say.
func (b *beats) lookForTwin(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, b.lease/20) // the beat itself must not fail by it
	defer cancel()
	workers, err := b.store.Workers(ctx)
	now, _, unknown := b.store.Now()
	if err != nil || unknown != nil {
		return false
	}
	for _, w := range workers {
		if w.ID != b.info.ID || w.Host == b.info.Host && w.PID == b.info.PID {
			continue
		}
		if age := now.Sub(w.SeenAt); age < b.lease {
			b.log.log.Warn("another process has used this worker's id a moment ago; unless it has ended, give each its own (AX_WORKER_ID)",
				"host", w.Host, "pid", w.PID, "age", age.Round(time.Millisecond))
		}
	}
	return true
}

// extend makes one call for all executions, and another one for those that are near their timeout. Its time is so short that three
// may hang, one after the other, before handlers have to be cancelled.
func (b *beats) extend(ctx context.Context, owned []task.Owned) error {
	ctx, cancel := context.WithTimeout(ctx, b.lease/5)
	defer cancel()
	inTime, ending := b.runs.split(owned, time.Now())
	for i, part := range [][]task.Owned{inTime, ending} {
		if len(part) == 0 {
			continue
		}
		sent := time.Now()
		result, err := b.store.Heartbeat(ctx, task.HeartbeatRequest{Worker: b.info.ID, Owned: part, Lease: b.lease, InTime: i == 0})
		if err != nil {
			return err
		}
		b.runs.noteConfirmed(part, sent, result.Lost)
		for _, e := range b.runs.confirm(part, sent, result) {
			b.lost(e)
		}
	}
	return nil
}

// fence ends handlers whose lease may be over, by the monotonic clock and whatever the database does meanwhile.
func (e *engine) fence(ctx context.Context) {
	tick := time.NewTicker(max(e.opts.Lease/50, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, x := range e.runs.fenceOff(time.Now()) {
				e.metrics.fenced.Inc()
				x.logger(e.log).Warn("no heartbeat was confirmed in time, the handler is cancelled")
			}
		case <-ctx.Done():
			return
		}
	}
}
