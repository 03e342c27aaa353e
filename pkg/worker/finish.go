package worker

import (
	"context"
	"errors"
	"slices"
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
	// finishSplit is after how many failures of a batch its outcomes are sent one by one, to find out what is wrong with it.
	finishSplit = 3
	// finishPatience is how often one outcome may fail that way, each time after others were recorded, before it is given up:
	// something is wrong with it and not with the database.
	finishPatience = 5
)

// finished is an outcome on its way to the database.
type finished struct {
	e       *execution
	outcome task.Outcome
	failed  time.Time // when it last failed
	refused int       // how often it failed after others had been recorded
}

func (f finished) size() int { return len(f.outcome.Result) + 256 }

// finisher records outcomes. It goes on until each is answered or nothing can come of it any more; no breaker sits here.
type finisher struct {
	store   store
	runs    *runs
	log     *quietLog
	metrics *metrics
	timeout time.Duration // of one call
	wake    bell
	lost    func(e *execution) // the database says that the execution was not ours any more
	room    func()             // there is room for results again

	count atomic.Int64 // outcomes that are not answered
	bytes atomic.Int64

	mu       sync.Mutex
	queue    []finished
	pace     pace
	empty    chan struct{} // closed while nothing is unanswered
	recorded time.Time     // when a batch was last answered
	sender   sync.WaitGroup
}

func newFinisher(s store, r *runs, lease time.Duration, log *quietLog, m *metrics, lost func(*execution), room func()) *finisher {
	f := &finisher{store: s, runs: r, log: log, metrics: m, timeout: lease / 3, wake: newBell(), lost: lost, room: room,
		pace: pace{apart: finishApart}, empty: make(chan struct{})}
	close(f.empty)
	return f
}

// full reports whether so many results wait that no more work should be taken.
func (f *finisher) full() bool {
	return f.count.Load() >= maxUnrecorded || f.bytes.Load() >= maxUnrecordedBytes
}

func (f *finisher) add(e *execution, o task.Outcome) {
	r := finished{e: e, outcome: o}
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
	timer := idleTimer()
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
	for failures := 0; ; {
		var err error
		if failures < finishSplit {
			batch, err = f.try(ctx, batch)
		} else {
			batch, err = f.singly(ctx, batch)
		}
		if len(batch) == 0 || ctx.Err() != nil {
			return // the worker stops: what is not recorded comes back when its lease ends
		}
		failures++
		f.log.warn("results cannot be recorded, trying on", "err", err)
		f.metrics.finishFailures.Inc()
		if batch = f.worthwhile(batch); !pause(ctx, backoff(failures, finishRetryFirst, finishRetryMost)) {
			return
		}
	}
}

// singly sends the outcomes one by one, as long as the database seems to be there. It returns those to be sent again.
func (f *finisher) singly(ctx context.Context, batch []finished) (again []finished, last error) {
	misses := 0
	for i, r := range batch {
		if misses == finishSplit {
			return append(slices.Clone(batch[i:]), again...), last // others first the next time
		}
		failed, err := f.try(ctx, []finished{r})
		if misses++; err == nil {
			misses = 0
			continue
		}
		again, last = append(again, failed...), err
	}
	return again, last
}

// try sends outcomes once and returns those without an answer: all or none.
func (f *finisher) try(ctx context.Context, batch []finished) ([]finished, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	outcomes := make([]task.Outcome, len(batch))
	for i, r := range batch {
		outcomes[i] = r.outcome
	}
	sent := time.Now()
	call, cancel := context.WithTimeout(ctx, f.timeout)
	answers, err := f.store.Finish(call, outcomes)
	cancel()
	now := time.Now()
	f.mu.Lock()
	if err == nil {
		f.recorded = now
	}
	recorded := f.recorded
	f.mu.Unlock()
	if err != nil {
		for i := range batch {
			if !batch[i].failed.IsZero() && recorded.After(batch[i].failed) {
				batch[i].refused++
			}
			batch[i].failed = now
		}
		return batch, err
	}
	f.metrics.finishSeconds.Observe(now.Sub(sent).Seconds())
	for i, r := range batch {
		if errors.Is(answers[i], task.ErrLeaseLost) {
			f.lost(r.e)
		}
		f.done(r)
	}
	return nil, nil
}

// worthwhile gives up those outcomes that can no longer be recorded, and those that fail while others are recorded.
func (f *finisher) worthwhile(batch []finished) []finished {
	now := time.Now()
	rest := batch[:0:0]
	for _, r := range batch {
		if r.refused < finishPatience && !f.runs.hopeless(r.e, now) {
			rest = append(rest, r)
			continue
		}
		r.e.logger(f.log.log).Error("result given up, the task is left to its lease")
		f.metrics.givenUp.Inc()
		f.done(r)
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
