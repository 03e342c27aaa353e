package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// execution is one attempt of a task in this worker. What changes after its start is guarded by the lock of runs.
type execution struct {
	task   *task.Task
	kind   *kind
	public Task
	runs   *runs
	store  store
	log    *quietLog

	ctx     context.Context
	end     context.CancelCauseFunc
	started time.Time

	// confirmed is when the request was sent that last confirmed this execution: its claim or a beat. The lease goes at
	// least from then on, whatever the way took.
	confirmed time.Time
	note      func(executionID string, until time.Time) // [Options.Confirmed]; nil: nobody asks
	verdict   verdict
	begun     bool // the handler was called; only its own goroutine reads and writes it
	returned  bool // the handler has returned
	progress  progressState

	onceMu sync.Mutex
	onceIn map[string]chan struct{} // keys of Once that a goroutine of the handler is inside of; closed when it leaves
}

// verdict is what has been decided about an execution, once.
type verdict int

const (
	undecided verdict = iota
	// reporting: an outcome was handed to the finisher. Heartbeats go on until it is recorded.
	reporting
	// recorded: the database has the outcome, or it was given up.
	recorded
	// fenced: the lease may be over by now for all we know. It is never reported, only handed back.
	fenced
	// lost: the database says that it is no longer ours. Nothing is sent any more.
	lost
)

func (e *execution) owned() task.Owned { return task.Owned{ID: e.task.ID, Claim: e.task.Claim} }

// runs is the set of executions: those that are not recorded yet, and those whose handlers have not returned yet.
type runs struct {
	lease time.Duration

	mu     sync.Mutex
	open   map[task.Owned]*execution // not recorded and not lost
	inside map[*execution]struct{}   // handler has not returned
	left   chan struct{}             // closed and replaced when a handler returns or one is recorded
	ended  bool                      // all contexts were ended, because the worker stops
}

func newRuns(lease time.Duration) *runs {
	return &runs{lease: lease, open: make(map[task.Owned]*execution), inside: make(map[*execution]struct{}), left: make(chan struct{})}
}

// fence is when a handler must be told that its lease is lost, unless a beat confirms it before: a fifth of the lease early,
// so that it can stop before another worker may begin.
func (r *runs) fence(e *execution) time.Time { return r.until(e.confirmed) }

// until is how long an execution is valid whose claim or beat was sent at the given time and confirmed.
func (r *runs) until(sent time.Time) time.Time { return sent.Add(r.lease - r.lease/5) }

func (r *runs) add(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[e.owned()] = e
	r.inside[e] = struct{}{}
	if r.ended {
		e.end(ErrShutdown)
	}
}

// hold adds an execution that is only to be reported.
func (r *runs) hold(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[e.owned()] = e
}

// changed tells those that await. The caller holds mu.
func (r *runs) changed() {
	close(r.left)
	r.left = make(chan struct{})
}

// owned lists the executions whose leases are to be extended. A fenced one is left out: its handler was told to stop.
func (r *runs) owned() []task.Owned {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]task.Owned, 0, len(r.open))
	for o, e := range r.open {
		if e.verdict == undecided || e.verdict == reporting {
			list = append(list, o)
		}
	}
	return list
}

// split tells those that have more than a lease left until their timeout from the others.
func (r *runs) split(owned []task.Owned, now time.Time) (inTime, ending []task.Owned) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range owned {
		if e := r.open[o]; e != nil && e.started.Add(e.task.Timeout).Sub(now) > r.lease {
			inTime = append(inTime, o)
		} else {
			ending = append(ending, o)
		}
	}
	return inTime, ending
}

// noteConfirmed tells whoever audits this worker how long executions are valid. It is called before a beat's answer is acted on,
// so that what the audit has is never behind what this worker goes by.
func (r *runs) noteConfirmed(asked []task.Owned, sent time.Time, lost []task.Owned) {
	r.mu.Lock()
	var told []*execution
	for _, o := range asked {
		if e := r.open[o]; e != nil && e.note != nil && e.verdict == undecided && !slices.Contains(lost, o) {
			told = append(told, e)
		}
	}
	r.mu.Unlock()
	for _, e := range told {
		e.note(e.task.ExecutionID(), r.until(sent))
	}
}

// confirm notes a beat that was sent at the given time, and acts on its answer. It returns what was lost.
func (r *runs) confirm(asked []task.Owned, sent time.Time, result task.HeartbeatResult) (lostNow []*execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := make(map[task.Owned]bool, len(result.Lost))
	for _, o := range result.Lost {
		gone[o] = true
		// One that is being reported may have been recorded a moment ago: its report tells whether it was lost.
		if e := r.open[o]; e != nil && e.verdict == undecided {
			e.verdict = lost
			delete(r.open, o)
			e.end(ErrLeaseLost)
			lostNow = append(lostNow, e)
		}
	}
	for _, o := range asked {
		if e := r.open[o]; e != nil && !gone[o] && sent.After(e.confirmed) {
			e.confirmed = sent
		}
	}
	for _, o := range result.Cancelled {
		if e := r.open[o]; e != nil && e.verdict == undecided {
			e.end(ErrCancelled)
		}
	}
	return lostNow
}

// cancel ends the context of an execution that somebody asked to cancel. An empty execution id means whichever there is.
func (r *runs) cancel(id, executionID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := range r.inside {
		if e.task.ID == id && (executionID == "" || executionID == e.task.ExecutionID()) {
			e.end(ErrCancelled)
		}
	}
}

// fenceOff ends the context of every handler whose lease may be over soon. It returns them.
func (r *runs) fenceOff(now time.Time) (off []*execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.open {
		if e.verdict == undecided && !now.Before(r.fence(e)) {
			e.verdict = fenced
			e.end(ErrLeaseLost)
			off = append(off, e)
		}
	}
	return off
}

// timedOut decides that an attempt is over although its handler has not returned. It reports false when something else was
// decided before.
func (r *runs) timedOut(e *execution) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.verdict != undecided || e.returned {
		return false
	}
	e.verdict = reporting
	return true
}

// leave notes that a handler has returned, and what may be done about it: reporting (report what it returned), fenced (hand
// it back), anything else: nothing.
func (r *runs) leave(e *execution, now time.Time) verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.returned = true
	switch e.verdict {
	case undecided:
		// The loop that fences may not have come round yet, above all after the process was stopped for a while.
		if now.Before(r.fence(e)) {
			e.verdict = reporting
			return reporting
		}
		e.verdict = fenced
		e.end(ErrLeaseLost)
		return fenced
	case fenced:
		return fenced
	}
	return lost
}

// out forgets a handler that has returned, after what it came to was handed on: a stop waits until none is left.
func (r *runs) out(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside, e)
	r.changed()
}

// settle ends the book-keeping of an execution whose report is answered or given up.
func (r *runs) settle(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.verdict = recorded
	delete(r.open, e.owned())
	r.changed()
}

// hopeless reports whether the lease of a reported execution is certainly over, and one more lease has passed since: whatever
// became of it, sending the report again is of no use.
func (r *runs) hopeless(e *execution, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.After(e.confirmed.Add(2 * r.lease))
}

// shutdown ends the contexts of all handlers.
func (r *runs) shutdown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for e := range r.inside {
		e.end(ErrShutdown)
	}
}

// await waits until no handler is left, or ctx ends. It returns those that are left.
func (r *runs) await(ctx context.Context) []*execution {
	for {
		r.mu.Lock()
		n, left := len(r.inside), r.left
		r.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-left:
		case <-ctx.Done():
			return r.handlers(func(*execution) bool { return true })
		}
	}
}

// handlers lists the executions whose handlers are not out yet and that meet the condition.
func (r *runs) handlers(meets func(*execution) bool) (list []*execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := range r.inside {
		if meets(e) {
			list = append(list, e)
		}
	}
	return list
}

// crowd reports whether several handlers are at work, so that results may come in numbers.
func (r *runs) crowd() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inside) >= 4
}

// abandoned counts handlers that go on although their attempt is over.
func (r *runs) abandoned() int {
	return len(r.handlers(func(e *execution) bool { return e.verdict != undecided && !e.returned }))
}

func (e *execution) String() string { return e.task.Type + " " + e.task.ID }
