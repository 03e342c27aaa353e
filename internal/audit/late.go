package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// postpone keeps a task that waits for too long, to be looked at again.
func (a *audit) postpone(id string) {
	if len(a.late) < mostLate {
		a.late[id] = true
	}
}

// checkLate looks at what others should have done by now, gives them a moment, and reports what is still so: after an outage everything
// is late and will be done at once.
func (a *audit) checkLate(ctx context.Context) error {
	forgotten, err := a.forgotten(ctx)
	if err != nil {
		return err
	}
	slipped, err := a.slipped(ctx, nil)
	if err != nil {
		return err
	}
	a.progress("schedules", a.sum.Schedules)
	if len(forgotten)+len(slipped)+len(a.late) == 0 {
		return nil
	}
	a.progress("what is late, once more", len(forgotten)+len(slipped)+len(a.late))
	settle := time.NewTimer(a.Settle)
	defer settle.Stop()
	select {
	case <-settle.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := a.reportForgotten(ctx, forgotten); err != nil {
		return err
	}
	if err := a.reportWaiting(ctx); err != nil {
		return err
	}
	if slipped, err = a.slipped(ctx, slipped); err != nil {
		return err
	}
	for _, v := range slipped {
		if err := a.report(v); err != nil {
			return err
		}
	}
	return nil
}

// forgotten returns the tasks that are overdue while workers are free.
func (a *audit) forgotten(ctx context.Context) ([]Violation, error) {
	if len(a.lanes.overdue) == 0 {
		return nil, nil
	}
	if err := a.lanes.roster(ctx, a.store); err != nil { // who is still there
		return nil, err
	}
	now, _, err := a.store.Now()
	if err != nil {
		return nil, fmt.Errorf("ask for the database's time: %w", err)
	}
	found := a.lanes.forgotten(a.began, now, a.Late)
	return slices.DeleteFunc(found, func(v Violation) bool { return a.Type != "" && v.Type != a.Type }), nil
}

// reportForgotten reports those that nobody has touched since.
func (a *audit) reportForgotten(ctx context.Context, found []Violation) error {
	for part := range slices.Chunk(found, lookupBatch) {
		ids := make([]string, len(part))
		for i, v := range part {
			ids[i] = v.Task
		}
		now, err := a.store.ByIDs(ctx, ids)
		if err != nil {
			return err
		}
		for _, v := range part {
			untouched := func(t *task.Task) bool { return t.ID == v.Task && t.Seq == v.Seq && t.State == task.Pending }
			if !slices.ContainsFunc(now, untouched) {
				continue
			}
			if err := a.report(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *audit) reportWaiting(ctx context.Context) error {
	for part := range slices.Chunk(slices.Sorted(maps.Keys(a.late)), lookupBatch) {
		tasks, err := a.store.ByIDs(ctx, part)
		if err != nil {
			return err
		}
		found, err := a.withoutParents(ctx, tasks)
		if err != nil {
			return err
		}
		for _, v := range found {
			if err := a.report(v); err != nil {
				return err
			}
		}
	}
	return nil
}
