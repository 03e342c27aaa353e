package audit

import (
	"fmt"
	"strings"

	"github.com/ax-scheduler/ax/internal/task"
)

// examine checks what a task says about itself, without a look at anything else.
func examine(t *task.Task) []Violation {
	f := &findings{task: t}
	f.numbers()
	f.moves()
	f.executions()
	f.charges()
	f.ownership()
	return f.found
}

// findings gathers what is wrong with one task.
type findings struct {
	task  *task.Task
	found []Violation
}

func (f *findings) add(kind Kind, seq int64, format string, args ...any) {
	f.found = append(f.found, Violation{Kind: kind, Task: f.task.ID, Type: f.task.Type, Seq: seq, Text: fmt.Sprintf(format, args...)})
}

// numbers checks that the kept changes are numbered without a gap or a repeat, up to the newest.
func (f *findings) numbers() {
	h := f.task.History
	if len(h) == 0 {
		f.add(Seq, 0, "it has no history")
		return
	}
	if first := h[0].Seq; first < 1 || first > 1 && len(h) < task.MaxHistory {
		f.add(Seq, first, "its history begins with change %d and keeps only %d", first, len(h))
	}
	for i := 1; i < len(h); i++ {
		if h[i].Seq != h[i-1].Seq+1 {
			f.add(Seq, h[i].Seq, "change %d follows change %d", h[i].Seq, h[i-1].Seq)
		}
	}
	if last := h[len(h)-1].Seq; last != f.task.Seq {
		f.add(Seq, f.task.Seq, "its seq is %d, and the newest change in its history is %d", f.task.Seq, last)
	}
}

// moves checks each change against the table, and that each begins where the one before it ended.
func (f *findings) moves() {
	h := f.task.History
	for i, e := range h {
		if !task.Allowed(e.From, e.To, e.Reason) {
			f.add(Transition, e.Seq, "%s -> %s (%s) by %s is no legal change", from(e.From), e.To, e.Reason, e.By)
			continue
		}
		if i == 0 || e.Seq != h[i-1].Seq+1 || e.From == h[i-1].To {
			continue
		}
		if e.To == task.Running && h[i-1].To == task.Running {
			continue // a second start while one runs: see executions
		}
		f.add(Transition, e.Seq, "change %d begins in state %s, and the one before it led to %s", e.Seq, from(e.From), h[i-1].To)
	}
	if len(h) > 0 && h[len(h)-1].To != f.task.State {
		f.add(Transition, f.task.Seq, "it is %s, and the newest change in its history led to %s", f.task.State, h[len(h)-1].To)
	}
}

func from(s task.State) string {
	if s == "" {
		return "(new)"
	}
	return string(s)
}

// executions checks that one execution ends before the next begins, and is ended by its own claim.
func (f *findings) executions() {
	started := map[string]int64{}
	open, last := "", int64(0)
	for _, e := range f.task.History {
		if e.Seq != last+1 {
			open = "" // what happened in between is not known
		}
		last = e.Seq
		switch {
		case e.To == task.Running && e.From != task.Running:
			if open != "" {
				f.add(Overlap, e.Seq, "claim %s began with change %d, and claim %s had not ended", e.Claim, e.Seq, open)
			} else if at, ok := started[e.Claim]; ok {
				f.add(Overlap, e.Seq, "claim %s began with change %d and again with change %d", e.Claim, at, e.Seq)
			}
			open, started[e.Claim] = e.Claim, e.Seq
		case e.From == task.Running && e.To != task.Running:
			if open != "" && e.Claim != open {
				f.add(Overlap, e.Seq, "claim %s was ended under claim %s", open, e.Claim)
			}
			open = ""
		}
	}
	if t := f.task; t.State == task.Running && open != "" && t.Claim != "" && t.Claim != open {
		f.add(Overlap, t.Seq, "it runs under claim %s, and its history gave it to claim %s", t.Claim, open)
	}
}

// charges checks the counters of failures and losses.
func (f *findings) charges() {
	if t := f.task; t.Failures > t.MaxAttempts {
		f.add(Failures, 0, "%d failures, and it may fail %d times", t.Failures, t.MaxAttempts)
	}
	if t := f.task; t.Losses > t.MaxLosses+1 {
		f.add(Losses, 0, "%d losses, and it may be lost %d times", t.Losses, t.MaxLosses)
	}
}

// ownership checks that exactly what runs is owned, until a time at which somebody looks.
func (f *findings) ownership() {
	t := f.task
	if t.State == task.Running {
		if lacks := named("leaseUntil", t.LeaseUntil.IsZero(), "checkAt", t.CheckAt.IsZero()); lacks != "" {
			f.add(Lease, 0, "it runs without %s", lacks)
		}
		if lacks := named("workerId", t.WorkerID == "", "claim", t.Claim == ""); lacks != "" {
			f.add(Owner, 0, "it runs without %s", lacks)
		}
	} else if !t.State.Terminal() {
		if has := named("workerId", t.WorkerID != "", "leaseUntil", !t.LeaseUntil.IsZero()); has != "" {
			f.add(Owner, 0, "it is %s and has %s", t.State, has)
		}
	}
	if !t.State.Terminal() {
		if !t.FinishedAt.IsZero() {
			f.add(Leftover, 0, "it is %s and has finishedAt", t.State)
		}
		return
	}
	if has := named("workerId", t.WorkerID != "", "leaseUntil", !t.LeaseUntil.IsZero(), "deadlineAt", !t.DeadlineAt.IsZero(),
		"checkAt", !t.CheckAt.IsZero()); has != "" {
		f.add(Leftover, 0, "it is %s and still has %s", t.State, has)
	}
	if t.FinishedAt.IsZero() {
		f.add(Leftover, 0, "it is %s without finishedAt", t.State)
	}
}

// named lists the names whose condition holds; the arguments are pairs of both.
func named(pairs ...any) string {
	var names []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1].(bool) {
			names = append(names, pairs[i].(string))
		}
	}
	return strings.Join(names, " and ")
}
