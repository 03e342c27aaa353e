package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/task"
)

// report is what a run came to.
type report struct {
	seed       uint64
	counts     map[string]int
	tasks      int
	ends       map[task.State]int
	executions int
	broken     int // executions whose process died or was stopped beyond their time
	revivals   int // that the reaper made
	excused    int
	recovery   []time.Duration // from the end of a broken execution to the next start of its task, sorted
	quiet      time.Duration
	audit      []string // what ax verify said
	violations []violation
}

func newReport(e evidence, counts map[string]int, s script) *report {
	r := &report{seed: s.seed, counts: counts, tasks: len(e.submitted), ends: map[task.State]int{}, executions: len(e.runs), violations: judge(e)}
	for _, t := range e.tasks {
		r.ends[t.State]++
		for _, h := range t.History {
			if h.Reason == task.ReasonLeaseExpired {
				r.revivals++
			}
		}
	}
	for _, sub := range e.submitted {
		if e.tasks[sub.id] == nil && e.excused(sub) {
			r.excused++
		}
	}
	r.recovery, r.broken = recoveries(e.runs)
	return r
}

// recoveries measures how long a task whose worker died or stood still was without one.
func recoveries(runs []ledger.Execution) (took []time.Duration, broken int) {
	byTask := map[string][]ledger.Execution{}
	for _, x := range runs {
		byTask[x.Task] = append(byTask[x.Task], x)
	}
	for _, of := range byTask {
		slices.SortFunc(of, func(a, b ledger.Execution) int { return cmp.Compare(a.At, b.At) })
		for i, x := range of {
			if x.Result != ledger.Killed && x.Result != ledger.Stale {
				continue
			}
			broken++
			if i+1 < len(of) {
				took = append(took, time.Duration(of[i+1].At-x.End))
			}
		}
	}
	slices.Sort(took)
	return took, broken
}

func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*p/100)].Round(time.Millisecond)
}

func (r *report) print(out io.Writer) {
	total := 0
	for _, n := range r.counts {
		total += n
	}
	fmt.Fprintf(out, "\n%d faults\n", total)
	for _, line := range sortedCounts(r.counts) {
		fmt.Fprintln(out, " ", line)
	}
	fmt.Fprintf(out, "%d tasks: %d success, %d failed, %d cancelled; %d gone with the store of NATS, where they were only queued\n",
		r.tasks, r.ends[task.Success], r.ends[task.Failed], r.ends[task.Cancelled], r.excused)
	fmt.Fprintf(out, "%d executions, %d of them broken off by a dead or stopped worker; %d revivals\n", r.executions, r.broken, r.revivals)
	fmt.Fprintf(out, "recovery, from the end of such an execution to the next start: p50 %v, p95 %v (%d measured)\n",
		percentile(r.recovery, 50), percentile(r.recovery, 95), len(r.recovery))
	fmt.Fprintf(out, "quiet %v after the last fault\n", r.quiet.Round(time.Second))
	for _, said := range r.audit {
		fmt.Fprintf(out, "ax verify %s\n", said)
	}
	for _, v := range r.violations {
		fmt.Fprintln(out, "VIOLATION", v)
	}
	if len(r.violations) == 0 {
		fmt.Fprintf(out, "seed %d: no promise broken\n", r.seed)
	}
}
