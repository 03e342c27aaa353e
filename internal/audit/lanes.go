package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

type laneKey struct{ taskType, channel string }

type orderKey struct {
	laneKey
	priority int
}

// lanes gathers what tells a task that is forgotten from one that waits for its turn: which workers have free slots, and what was started
// lately.
type lanes struct {
	workers []task.WorkerInfo
	busy    map[string]int // running tasks of a worker
	started map[laneKey]time.Time
	passed  map[orderKey]time.Time // the latest scheduledAt of what was started lately
	overdue []*task.Task           // candidates, without their histories
}

func newLanes() *lanes {
	return &lanes{busy: map[string]int{}, started: map[laneKey]time.Time{}, passed: map[orderKey]time.Time{}}
}

func (l *lanes) roster(ctx context.Context, store Store) (err error) {
	if l.workers, err = store.Workers(ctx); err != nil {
		return fmt.Errorf("read workers: %w", err)
	}
	return nil
}

// note takes account of a task as it was read.
func (l *lanes) note(t *task.Task, now time.Time, late time.Duration) {
	lane := laneKey{t.Type, t.Channel}
	if t.State == task.Running {
		l.busy[t.WorkerID]++
	}
	if t.StartedAt.After(l.started[lane]) {
		l.started[lane] = t.StartedAt
	}
	// What a retry or a snooze put off was started by an earlier time than it has now.
	if order := (orderKey{lane, t.Priority}); t.State != task.Pending && now.Sub(t.StartedAt) < late && t.ScheduledAt.After(l.passed[order]) {
		l.passed[order] = t.ScheduledAt
	}
	if t.State == task.Pending && now.Sub(t.ScheduledAt) > late && t.CancelRequestedAt.IsZero() && t.ConcurrencyKey == "" &&
		(t.ExpiresAt.IsZero() || t.ExpiresAt.After(now)) && len(l.overdue) < mostLate {
		short := *t
		short.History, short.Change = nil, ""
		l.overdue = append(l.overdue, &short)
	}
}

// idle names a worker that could take the task at once, and has been there for as long as tasks may be late; empty: none.
func (l *lanes) idle(t *task.Task, now time.Time, late time.Duration) string {
	for _, w := range l.workers {
		if w.Channel == t.Channel && slices.Contains(w.Types, t.Type) && now.Sub(w.SeenAt) < task.SeenWithin &&
			now.Sub(w.StartedAt) > late && l.busy[w.ID] < w.Slots {
			return w.ID
		}
	}
	return ""
}

// forgotten returns those overdue tasks that a free worker should have taken: nothing of their lane has been started for long, or what
// was due later than they were has been started before them.
func (l *lanes) forgotten(now, alive time.Time, late time.Duration) []Violation {
	var out []Violation
	for _, t := range l.overdue {
		lane := laneKey{t.Type, t.Channel}
		worker := l.idle(t, alive, late)
		still := now.Sub(l.started[lane]) > late
		passed := l.passed[orderKey{lane, t.Priority}].Sub(t.ScheduledAt) > late
		if worker == "" || !still && !passed {
			continue
		}
		out = append(out, Violation{Kind: Overdue, Task: t.ID, Type: t.Type, Seq: t.Seq, Text: fmt.Sprintf(
			"it is due since %s and nobody takes it, though worker %s has free slots", t.ScheduledAt.Format(time.RFC3339), worker)})
	}
	return out
}
