package dispatch

import (
	"time"

	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	shortRun    = 50 * time.Millisecond  // a type that runs shorter on average may share signals
	startWindow = 100 * time.Millisecond // a signal holds no more than the smallest worker starts in this time
	runSamples  = 64                     // executions of a type watched at a time
	longRun     = time.Second            // an execution still running after this counts with its age and is let go
	batchNoise  = 250 * time.Millisecond // what waiting for batches may add to a run time under load
)

// runs measures how long the tasks of one type run, from the database's times in the change events. It watches a sample, so
// that its memory is bounded.
type runs struct {
	mean   average
	open   map[string]time.Time // when a watched task started
	slots  int                  // of the smallest worker; 0: not known
	usedAt time.Time            // by the process's own clock
}

func (r *runs) begin(id string, at time.Time) {
	if r.open == nil {
		r.open = make(map[string]time.Time, runSamples)
	}
	if len(r.open) < runSamples {
		r.open[id] = at
	}
}

// end takes a run time in. While the task's lane is in backlog all workers are busy, and claims and reports wait for their
// batches: what is measured then says little about the task unless it is long, so that it may lower the mean, not raise it.
func (r *runs) end(id string, at time.Time, backlog bool) {
	began, ok := r.open[id]
	if !ok {
		return
	}
	delete(r.open, id)
	took := max(0, at.Sub(began))
	if backlog && r.mean.known && took > r.mean.value && took < batchNoise {
		return
	}
	r.mean.add(took)
}

// settle lets go of what has run so long that its length does not matter any more, or whose end was never seen.
func (r *runs) settle(now time.Time) {
	for id, began := range r.open {
		if age := now.Sub(began); age > longRun {
			r.mean.add(age)
			delete(r.open, id)
		}
	}
}

func (r *runs) short() bool { return r.mean.known && r.mean.value < shortRun }

// group is how many ids may share a signal: one, unless the tasks are known to be short. Then it is what the type's
// smallest worker starts in a tenth of a second. Where the workers are not known, the smallest is taken to have a single
// slot, which no worker can undercut.
func (r *runs) group() int {
	if !r.short() {
		return 1
	}
	started := int(startWindow / max(r.mean.value, time.Millisecond))
	return min(max(1, started*max(1, r.slots)), events.MaxSignalTasks)
}
