package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	maxFinish      = 256     // reports of one call
	maxFinishBytes = 8 << 20 // results of one call
	// maxUnrecorded bounds the results that wait: no more tasks are claimed while it is reached.
	maxUnrecorded      = 2000
	maxUnrecordedBytes = 64 << 20

	finishRetryFirst = 50 * time.Millisecond
	finishRetryMost  = 2 * time.Second
	// finishPatience is how often one report is sent while the database answers everything else. It has no good end then, so
	// the lease is left to end.
	finishPatience = 10
	// finishSplit is after how many failures of a batch its halves are sent apart, to find out what is wrong with it.
	finishSplit = 3
)

// finished is an outcome on its way to the database.
type finished struct {
	e       *execution
	outcome task.Outcome
}

func (f finished) size() int { return len(f.outcome.Result) + 256 }

// finisher records outcomes. It goes on until each is answered or nothing can come of it any more; no breaker sits here.
type finisher struct {
	store   store
	runs    *runs
	log     *quietLog
	metrics *metrics
	timeout time.Duration // of one call
	beat    time.Duration
	wake    bell
	lost    func(e *execution) // the database says that the execution was not ours any more
	room    func()             // there is room for results again

	count atomic.Int64 // outcomes that are not answered
	bytes atomic.Int64

	mu     sync.Mutex
	queue  []finished
	pace   pace
	empty  chan struct{} // closed while nothing is unanswered
	sender sync.WaitGroup
}

func newFinisher(s store, r *runs, lease, beat time.Duration, log *quietLog, m *metrics, lost func(*execution), room func()) *finisher {
	f := &finisher{store: s, runs: r, log: log, metrics: m, timeout: lease / 3, beat: beat, wake: newBell(), lost: lost, room: room,
		empty: make(chan struct{})}
	close(f.empty)
	return f
}

// full reports whether so many results wait that no more work should be taken.
func (f *finisher) full() bool {
	return f.count.Load() >= maxUnrecorded || f.bytes.Load() >= maxUnrecordedBytes
}

func (f *finisher) add(e *execution, o task.Outcome) {
	r := finished{e, o}
	f.mu.Lock()
	if f.count.Add(1) == 1 {
		f.empty = make(chan struct{})
	}
	f.bytes.Add(int64(r.size()))
	f.queue = append(f.queue, r)
	f.mu.Unlock()
	f.wake.ring()
}

// run sends batches until ctx ends, then waits for those under way.
func (f *finisher) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if wait := f.step(ctx); wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-f.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	f.sender.Wait()
}

func (f *finisher) step(ctx context.Context) (wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		now := time.Now()
		ok, wait := f.pace.allows(len(f.queue), f.runs.crowd(), now)
		if !ok {
			return wait
		}
		n, bytes := 0, 0
		for n < min(len(f.queue), maxFinish) && (n == 0 || bytes+f.queue[n].size() <= maxFinishBytes) {
			bytes += f.queue[n].size()
			n++
		}
		batch := append([]finished(nil), f.queue[:n]...)
		clear(f.queue[:n])
		if f.queue = f.queue[n:]; len(f.queue) == 0 {
			f.queue = nil // let the array go
		}
		f.pace.start(now)
		f.sender.Go(func() {
			f.send(ctx, batch)
			f.mu.Lock()
			f.pace.end(now, time.Now())
			f.mu.Unlock()
			f.wake.ring()
		})
	}
}

// send sends a batch until each of its outcomes is answered. An answer that was lost is no harm: the same outcomes are sent
// again, and the task's history tells whether they were recorded.
func (f *finisher) send(ctx context.Context, batch []finished) {
	first := time.Now()
	for failures := 0; len(batch) > 0; {
		sent := time.Now()
		answers, err := f.call(ctx, batch)
		if err == nil {
			f.metrics.finishSeconds.Observe(time.Since(sent).Seconds())
			for i, r := range batch {
				f.answered(r, answers[i])
			}
			return
		}
		failures++
		if ctx.Err() != nil {
			return // the worker stops; what is not recorded comes back when its lease ends
		}
		f.log.warn("results cannot be recorded, trying on", "err", err)
		f.metrics.finishFailures.Inc()
		batch = f.worthwhile(batch, failures, first)
		if !pause(ctx, backoff(failures, finishRetryFirst, finishRetryMost)) {
			return
		}
		if failures >= finishSplit && len(batch) > 1 {
			half := len(batch) / 2
			f.send(ctx, batch[:half])
			f.send(ctx, batch[half:])
			return
		}
	}
}

func (f *finisher) call(ctx context.Context, batch []finished) ([]error, error) {
	outcomes := make([]task.Outcome, len(batch))
	for i, r := range batch {
		outcomes[i] = r.outcome
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	return f.store.Finish(ctx, outcomes)
}

func (f *finisher) answered(r finished, err error) {
	if errors.Is(err, task.ErrLeaseLost) {
		f.lost(r.e)
	}
	f.done(r)
}

// worthwhile gives up those outcomes of a failed batch that can no longer be recorded, or that alone fail while beats succeed.
func (f *finisher) worthwhile(batch []finished, failures int, first time.Time) []finished {
	now := time.Now()
	contact := f.runs.lastContact()
	poison := len(batch) == 1 && failures >= finishPatience && contact.After(first) && now.Sub(contact) < 2*f.beat
	rest := batch[:0:0]
	for _, r := range batch {
		if poison || f.runs.hopeless(r.e, now) {
			f.log.log.Error("result given up, the task is left to its lease", "task_id", r.e.task.ID, "task_type", r.e.task.Type, "attempt", r.e.task.Attempts)
			f.metrics.givenUp.Inc()
			f.done(r)
		} else {
			rest = append(rest, r)
		}
	}
	return rest
}

func (f *finisher) done(r finished) {
	f.runs.settle(r.e)
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.full()
	f.bytes.Add(-int64(r.size()))
	if f.count.Add(-1) == 0 {
		close(f.empty)
	}
	if was && !f.full() {
		f.room()
	}
}

// drain waits until every outcome is answered. It returns how many are not when ctx ends.
func (f *finisher) drain(ctx context.Context) int {
	f.mu.Lock()
	empty := f.empty
	f.mu.Unlock()
	select {
	case <-empty:
		return 0
	case <-ctx.Done():
		return int(f.count.Load())
	}
}
