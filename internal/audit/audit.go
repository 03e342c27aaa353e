package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
)

// Store is what an audit reads of the database.
type Store interface {
	// Now estimates the database's time; it lies within bound of the truth.
	Now() (now time.Time, bound time.Duration, err error)
	// EachUnfinished hands over all tasks that the windows below do not hold.
	EachUnfinished(ctx context.Context, visit func([]*task.Task) error) error
	// PendingBetween returns pending tasks with from <= scheduledAt < to, at most limit; a zero time is open.
	PendingBetween(ctx context.Context, from, to time.Time, limit int) ([]*task.Task, error)
	EachPendingBetween(ctx context.Context, from, to time.Time, visit func([]*task.Task) error) error
	// EndedBetween returns tasks with from <= finishedAt < to, at most limit.
	EndedBetween(ctx context.Context, from, to time.Time, limit int) ([]*task.Task, error)
	EachEndedBetween(ctx context.Context, from, to time.Time, visit func([]*task.Task) error) error
	// EachArchivedSince hands over archived tasks that ended then or later; the zero time: all.
	EachArchivedSince(ctx context.Context, from time.Time, visit func([]*task.Task) error) error
	// ByIDs returns those of the tasks that exist, archived ones included, with their histories.
	ByIDs(ctx context.Context, ids []string) ([]*task.Task, error)
	DeadLettersOf(ctx context.Context, ids []string) (map[string]bool, error)
	EachDeadLetter(ctx context.Context, visit func([]task.DeadTask) error) error
	UniqueScope(ctx context.Context, taskType, key string) (string, error)
	LockUntil(ctx context.Context, name string) (time.Time, error)
	LoadCursor(ctx context.Context, name string) (token []byte, at time.Time, err error)
	Schedules(ctx context.Context, after string, limit int) ([]task.Schedule, error)
	Schedule(ctx context.Context, name string) (task.Schedule, error)
	Workers(ctx context.Context) ([]task.WorkerInfo, error)
}

// Stream is the event stream.
type Stream interface {
	// ReplayEvents hands over what the stream holds, oldest first; of one type only unless that is empty.
	ReplayEvents(ctx context.Context, taskType string, visit func(natsbus.Message) error) (natsbus.Held, error)
}

// Options say what is checked. The zero value checks all but events.
type Options struct {
	Events Stream    // nil: events are not checked
	Since  time.Time // tasks that ended before, and what belongs to them, are passed over; zero: none
	Type   string    // only this task type; empty: all
	Limit  int       // the audit ends after so many violations; default 1,000
	// Late is how late anything may be before it counts as forgotten; default 2 min, twice the pause between the dispatcher's walks.
	Late time.Duration
	// Settle is how long what is late is given to come right before it is reported; default 15 s. It is waited once, and only if
	// something is late.
	Settle time.Duration
	// Report gets each violation as it is found. Nil: they are only counted.
	Report func(Violation) error
	// Progress is told what is being read and how much of it has been. Nil: nobody is.
	Progress func(what string, n int)
}

// Summary is what an audit looked at, and what came of it.
type Summary struct {
	Tasks       int      `json:"tasks"`
	Events      int      `json:"events"`
	DeadLetters int      `json:"deadLetters"`
	Schedules   int      `json:"schedules"`
	Violations  int      `json:"violations"`
	Stopped     bool     `json:"stopped,omitempty"`   // at Limit; there may be more
	Unchecked   []string `json:"unchecked,omitempty"` // what could not be checked, and why
}

// settled is how long ago, by the notifier's own account, a change must have been dealt with before its event or dead letter is missed:
// a change gets its time a little before it is committed.
const settled = 5 * time.Second

// settledTx is the same for tasks inserted in a caller's transaction, which may take a minute to be committed.
const settledTx = 90 * time.Second

// Caps of what is remembered.
const (
	mostLate   = 10_000    // late tasks that are looked at again
	mostUnique = 1_000_000 // live tasks with a unique key
	mostOdd    = 10_000    // tasks of schedules whose slot is written unlike others
)

var errLimit = errors.New("enough violations")

// Run audits until all is checked, the limit is reached or ctx ends. An error means that not all could be checked; the summary is of
// what was.
func Run(ctx context.Context, store Store, o Options) (Summary, error) {
	if o.Limit <= 0 {
		o.Limit = 1000
	}
	if o.Late <= 0 {
		o.Late = 2 * time.Minute
	}
	if o.Settle <= 0 {
		o.Settle = 15 * time.Second
	}
	a := &audit{Options: o, store: store, reported: map[reportKey]bool{}, late: map[string]bool{}, unique: map[string]string{}, lanes: newLanes()}
	err := a.run(ctx)
	if errors.Is(err, errLimit) {
		a.sum.Stopped, err = true, nil
	}
	return a.sum, err
}

type audit struct {
	Options
	store Store
	sum   Summary

	began    time.Time // by the database's clock
	told     time.Time // up to here the notifier has dealt with all changes; zero: it never ran
	reported map[reportKey]bool
	trails   *trails           // of events; nil: not checked
	lanes    *lanes            // what workers do and what is overdue
	late     map[string]bool   // tasks that wait longer than they should
	unique   map[string]string // unique key -> live task
	odd      []oddSlot
}

type reportKey struct {
	kind      Kind
	task, key string
}

func (a *audit) run(ctx context.Context) (err error) {
	if a.began, _, err = a.store.Now(); err != nil {
		return fmt.Errorf("ask for the database's time: %w", err)
	}
	// Before the events are read: what had been dealt with by then is among them.
	if _, a.told, err = a.store.LoadCursor(ctx, "notifier"); err != nil {
		return err
	}
	if a.told.After(a.began) { // its clock went back since
		a.told = a.began
	}
	if err := a.lanes.roster(ctx, a.store); err != nil {
		return err
	}
	if a.Events != nil {
		if err := a.readEvents(ctx); err != nil {
			return err
		}
	}
	if err := a.readTasks(ctx); err != nil {
		return err
	}
	if err := a.readArchive(ctx); err != nil {
		return err
	}
	if err := a.readDeadLetters(ctx); err != nil {
		return err
	}
	if err := a.checkOddSlots(ctx); err != nil {
		return err
	}
	return a.checkLate(ctx)
}

// readTasks meets every task, in an order that a task which goes on meanwhile rarely escapes: what runs, what is pending, what ended.
func (a *audit) readTasks(ctx context.Context) error {
	page := func(what string) func([]*task.Task) error {
		n := 0
		return func(tasks []*task.Task) error {
			n += len(tasks)
			a.progress(what, n)
			return a.page(ctx, tasks)
		}
	}
	if err := a.store.EachUnfinished(ctx, page("running and waiting tasks")); err != nil {
		return err
	}
	pending := walk{read: a.store.PendingBetween, each: a.store.EachPendingBetween, visit: page("pending tasks")}
	if err := pending.all(ctx, a.began, time.Time{}); err != nil {
		return err
	}
	ended := walk{read: a.store.EndedBetween, each: a.store.EachEndedBetween, visit: page("ended tasks")}
	now, _, err := a.store.Now()
	if err != nil {
		return fmt.Errorf("ask for the database's time: %w", err)
	}
	since := a.Since
	if recent := a.began.Add(-2 * a.Late); since.After(recent) {
		since = recent // for what workers did lately
	}
	return ended.all(ctx, now, since)
}

// readArchive examines what has been put away. One that is still among the others as well, because its move was broken off, is met twice.
func (a *audit) readArchive(ctx context.Context) error {
	n := 0
	return a.store.EachArchivedSince(ctx, a.Since, func(tasks []*task.Task) error {
		n += len(tasks)
		a.progress("archived tasks", n)
		for _, t := range tasks {
			if t.State.Terminal() || a.passedOver(t) {
				continue
			}
			if err := a.report(Violation{Kind: Archived, Task: t.ID, Type: t.Type, Text: fmt.Sprintf("it is in the archive and %s", t.State)}); err != nil {
				return err
			}
		}
		return a.page(ctx, slices.DeleteFunc(tasks, func(t *task.Task) bool { return !t.State.Terminal() }))
	})
}

// page checks a batch of tasks: first as they were read, then, what looks wrong, as it is now.
func (a *audit) page(ctx context.Context, tasks []*task.Task) error {
	var chosen []*task.Task
	for _, t := range tasks {
		a.lanes.note(t, a.began, a.Late)
		if a.passedOver(t) {
			continue
		}
		chosen = append(chosen, t)
		if err := a.note(ctx, t); err != nil {
			return err
		}
	}
	a.sum.Tasks += len(chosen)
	suspects, err := a.inspect(ctx, chosen)
	if err != nil || len(suspects) == 0 {
		return err
	}
	again, err := a.store.ByIDs(ctx, slices.Sorted(maps.Keys(suspects)))
	if err != nil {
		return err
	}
	confirmed, err := a.inspect(ctx, again)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(confirmed)) {
		for _, v := range confirmed[id] {
			if !has(suspects[id], v.Kind) {
				continue // it changed in between, and this is of now
			}
			if v.Kind == Waiting { // somebody has to do something about it, who may be at it
				a.postpone(id)
				continue
			}
			if err := a.report(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func has(found []Violation, kind Kind) bool {
	return slices.ContainsFunc(found, func(v Violation) bool { return v.Kind == kind })
}

func (a *audit) passedOver(t *task.Task) bool {
	return a.Type != "" && t.Type != a.Type || !t.FinishedAt.IsZero() && t.FinishedAt.Before(a.Since)
}

// inspect returns what is wrong with tasks as they were read, and with what must agree with them.
func (a *audit) inspect(ctx context.Context, tasks []*task.Task) (map[string][]Violation, error) {
	found := map[string][]Violation{}
	for _, t := range tasks {
		bad := examine(t)
		if a.trails != nil {
			bad = append(bad, a.trails.compare(t, a.due(t))...)
		}
		if len(bad) > 0 {
			found[t.ID] = bad
		}
	}
	for _, check := range []func(context.Context, []*task.Task) ([]Violation, error){a.withoutDeadLetter, a.withoutParents} {
		more, err := check(ctx, tasks)
		if err != nil {
			return nil, err
		}
		for _, v := range more {
			found[v.Task] = append(found[v.Task], v)
		}
	}
	return found, nil
}

// due is up to when the changes of a task must have been dealt with by the notifier; the zero time: it never ran.
func (a *audit) due(t *task.Task) time.Time {
	switch {
	case a.told.IsZero():
		return time.Time{}
	case t.Source == "tx" && len(t.History) < 2:
		return a.told.Add(-settledTx)
	}
	return a.told.Add(-settled)
}

func (a *audit) report(v Violation) error {
	key := reportKey{v.Kind, v.Task + v.Schedule, fmt.Sprint(v.Seq)}
	if a.reported[key] { // a task that went on is met twice
		return nil
	}
	a.reported[key] = true
	a.sum.Violations++
	if a.Report != nil {
		if err := a.Report(v); err != nil {
			return err
		}
	}
	if a.sum.Violations >= a.Limit {
		return errLimit
	}
	return nil
}

func (a *audit) unchecked(format string, args ...any) {
	a.sum.Unchecked = append(a.sum.Unchecked, fmt.Sprintf(format, args...))
}

func (a *audit) progress(what string, n int) {
	if a.Progress != nil {
		a.Progress(what, n)
	}
}
