package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// lookupBatch is how many ids are asked for at once.
const lookupBatch = 100

// lookAgain is the longest pause between two looks at what a waiting task waits for, when no event tells of its parents' ends.
const lookAgain = 10 * time.Minute

// leavesLetter are the ends that leave a dead letter, unless the task asked for none.
var leavesLetter = map[task.Reason]bool{
	task.ReasonExhausted: true, task.ReasonNonRetryable: true, task.ReasonWorkerLost: true, task.ReasonRejectedResult: true, task.ReasonExpired: true,
}

// note takes account of what concerns several tasks.
func (a *audit) note(ctx context.Context, t *task.Task) error {
	a.noteSlot(t)
	if t.UniqueKey == "" || t.State.Terminal() {
		return nil
	}
	key := t.Type + "/" + t.UniqueKey
	other, known := a.unique[key]
	switch {
	case known && other != t.ID:
		return a.checkUnique(ctx, t, other)
	case !known && len(a.unique) == mostUnique:
		a.unique[key] = t.ID
		a.unchecked("unique keys: more than %d live tasks have one", mostUnique)
	case !known && len(a.unique) < mostUnique:
		a.unique[key] = t.ID
	}
	return nil
}

// checkUnique reads both holders of a key at once.
func (a *audit) checkUnique(ctx context.Context, t *task.Task, other string) error {
	both, err := a.store.ByIDs(ctx, []string{t.ID, other})
	if err != nil {
		return err
	}
	live := 0
	for _, b := range both {
		if !b.State.Terminal() && b.Type == t.Type && b.UniqueKey == t.UniqueKey {
			live++
		}
	}
	if live < 2 {
		a.unique[t.Type+"/"+t.UniqueKey] = t.ID
		return nil
	}
	scope, err := a.store.UniqueScope(ctx, t.Type, t.UniqueKey)
	if err != nil || scope == "duration" { // a key that is free again after a time, whatever became of its holder
		return err
	}
	return a.report(Violation{Kind: Unique, Task: t.ID, Type: t.Type, Text: fmt.Sprintf("it and task %s are both live under the unique key %q", other, t.UniqueKey)})
}

// withoutDeadLetter returns failed tasks that should have a dead letter by now and have none.
func (a *audit) withoutDeadLetter(ctx context.Context, tasks []*task.Task) ([]Violation, error) {
	owing := map[string]*task.Task{}
	for _, t := range tasks {
		if t.State != task.Failed || t.OnExhausted == task.Ignore || len(t.History) == 0 {
			continue
		}
		if last := t.History[len(t.History)-1]; leavesLetter[last.Reason] && !last.At.After(a.due(t)) {
			owing[t.ID] = t
		}
	}
	var out []Violation
	for ids := range chunks(owing) {
		there, err := a.store.DeadLettersOf(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if t := owing[id]; !there[id] {
				last := t.History[len(t.History)-1]
				out = append(out, Violation{Kind: DeadLetter, Task: id, Type: t.Type, Seq: last.Seq, Text: fmt.Sprintf("it failed (%s) at %s and has no dead letter",
					last.Reason, last.At.Format(time.RFC3339))})
			}
		}
	}
	return out, nil
}

func chunks(m map[string]*task.Task) func(yield func([]string) bool) {
	return slices.Chunk(slices.Sorted(maps.Keys(m)), lookupBatch)
}

// withoutParents returns waiting tasks all of whose parents ended long enough ago for somebody to have noticed.
func (a *audit) withoutParents(ctx context.Context, tasks []*task.Task) ([]Violation, error) {
	now, _, err := a.store.Now()
	if err != nil {
		return nil, fmt.Errorf("ask for the database's time: %w", err)
	}
	parents := map[string]*task.Task{}
	var waiting []*task.Task
	for _, t := range tasks {
		if t.State != task.Waiting || t.Held || slices.ContainsFunc(t.WaitingOn, gate) {
			continue
		}
		waiting = append(waiting, t)
		for _, id := range t.WaitingOn {
			parents[id] = nil
		}
	}
	for ids := range chunks(parents) {
		found, err := a.store.ByIDs(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			p.History = nil
			parents[p.ID] = p
		}
	}
	var out []Violation
	for _, t := range waiting {
		last := t.CreatedAt
		if n := len(t.History); n > 0 && t.History[n-1].At.After(last) {
			last = t.History[n-1].At
		}
		open := false
		for _, id := range t.WaitingOn {
			p := parents[id]
			if open = p == nil || !p.State.Terminal(); open {
				break
			}
			if p.FinishedAt.After(last) {
				last = p.FinishedAt
			}
		}
		looked := t.CheckAt.IsZero() || now.Sub(t.CheckAt) > a.Late || now.Sub(last) > lookAgain+a.Late
		if open || now.Sub(last) <= a.Late || !looked {
			continue
		}
		text := fmt.Sprintf("it waits for %s, and all of that ended by %s", strings.Join(t.WaitingOn, ", "), last.Format(time.RFC3339))
		if len(t.WaitingOn) == 0 {
			text = "it waits for nothing and is not held"
		}
		out = append(out, Violation{Kind: Waiting, Task: t.ID, Type: t.Type, Seq: t.Seq, Text: text})
	}
	return out, nil
}

func gate(id string) bool { return strings.HasPrefix(id, "gate/") }

// readDeadLetters looks for the task of each dead letter.
func (a *audit) readDeadLetters(ctx context.Context) error {
	return a.store.EachDeadLetter(ctx, func(letters []task.DeadTask) error {
		letters = slices.DeleteFunc(letters, func(d task.DeadTask) bool {
			return a.Type != "" && d.Type != a.Type || d.At.Before(a.Since)
		})
		a.sum.DeadLetters += len(letters)
		a.progress("dead letters", a.sum.DeadLetters)
		for part := range slices.Chunk(letters, lookupBatch) {
			ids := make([]string, len(part))
			for i, d := range part {
				ids[i] = d.ID
			}
			found, err := a.store.ByIDs(ctx, ids)
			if err != nil {
				return err
			}
			states := map[string]task.State{}
			for _, t := range found {
				states[t.ID] = t.State
			}
			for _, d := range part {
				text := "there is a dead letter and no such task"
				switch state, ok := states[d.ID]; {
				case state == task.Failed: // for ever: a letter is written after its task's end
					continue
				case ok:
					text = fmt.Sprintf("there is a dead letter (%s), and the task is %s", d.Reason, state)
				}
				if err := a.report(Violation{Kind: DeadLetterOrphan, Task: d.ID, Type: d.Type, Text: text}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
