package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ax-scheduler/ax/internal/cronexpr"
	"github.com/ax-scheduler/ax/internal/task"
)

const (
	schedulePage = 500
	// keptSlot is how long the task of a slot is there at least: nothing removes what ended so lately.
	keptSlot = time.Hour
)

// oddSlot is the task of a slot whose id is not written as those of other slots, so that it may stand beside the task of the same slot.
type oddSlot struct {
	id, taskType string
	slot         string // the id it should have
}

// noteSlot takes account of the task of a slot. One that is written as it should be cannot be there twice: it is the _id.
func (a *audit) noteSlot(t *task.Task) {
	rest, ok := strings.CutPrefix(t.ID, task.SlotPrefix)
	if !ok {
		return
	}
	name, text, _ := strings.Cut(rest, ":")
	slot, err := time.Parse(time.RFC3339, text)
	if err != nil || task.SlotID(name, slot) == t.ID || slices.ContainsFunc(a.odd, func(o oddSlot) bool { return o.id == t.ID }) {
		return
	}
	if len(a.odd) == mostOdd {
		a.unchecked("slots: more than %d tasks of schedules have ids that no slot has", mostOdd)
	}
	if len(a.odd) <= mostOdd {
		a.odd = append(a.odd, oddSlot{t.ID, t.Type, task.SlotID(name, slot)})
	}
}

// checkOddSlots looks for a second task of the slots noted.
func (a *audit) checkOddSlots(ctx context.Context) error {
	holder := map[string]string{} // slot -> task that has it
	for part := range slices.Chunk(a.odd, lookupBatch) {
		ids := make([]string, len(part))
		for i, o := range part {
			ids[i] = o.slot
		}
		found, err := a.store.ByIDs(ctx, ids)
		if err != nil {
			return err
		}
		for _, t := range found {
			holder[t.ID] = t.ID
		}
	}
	for _, o := range a.odd {
		other, taken := holder[o.slot]
		if !taken {
			holder[o.slot] = o.id
			continue
		}
		if err := a.report(Violation{Kind: SlotTwice, Task: o.id, Type: o.taskType, Text: fmt.Sprintf("it is of the same slot as task %s", other)}); err != nil {
			return err
		}
	}
	return nil
}

// slipped returns the schedules that pass over a slot, by name. Their policy is that the newest slot of those that fell due fires: which
// of the others nobody could fire cannot be told from what is stored.
func (a *audit) slipped(ctx context.Context, only map[string]Violation) (map[string]Violation, error) {
	lock, err := a.store.LockUntil(ctx, "cron")
	if err != nil {
		return nil, err
	}
	out := map[string]Violation{}
	for after := ""; ; {
		page, err := a.store.Schedules(ctx, after, schedulePage)
		if err != nil {
			return nil, err
		}
		now, bound, err := a.store.Now() // after the reading, so that a position read is not ahead of the time
		if err != nil {
			return nil, fmt.Errorf("ask for the database's time: %w", err)
		}
		for _, s := range page {
			if _, asked := only[s.Name]; only != nil && !asked || a.Type != "" && s.TaskType != a.Type {
				continue
			}
			if only == nil {
				a.sum.Schedules++
			}
			text, id, err := a.slips(ctx, s, now.Add(bound), lock.After(now))
			if err != nil {
				return nil, err
			}
			if text != "" {
				out[s.Name] = Violation{Kind: SlotSkipped, Task: id, Type: s.TaskType, Schedule: s.Name, Text: text}
			}
		}
		if len(page) < schedulePage {
			return out, nil
		}
		after = page[len(page)-1].Name
	}
}

func (a *audit) slips(ctx context.Context, s task.Schedule, now time.Time, led bool) (text, id string, err error) {
	if s.Broken != "" {
		return "", "", nil
	}
	expr, err := cronexpr.Parse(s.Cron, s.Zone)
	if err != nil {
		return "", "", nil // cron disables it when it is due
	}
	expr = expr.Anchored(s.Anchor)
	first := expr.Next(now)
	switch {
	case !first.IsZero() && (s.NextAt.IsZero() || s.NextAt.After(first)):
		return fmt.Sprintf("its next slot is %s, and it stands at %s", first.Format(time.RFC3339), shown(s.NextAt)), task.SlotID(s.Name, first), nil
	case led && now.Sub(s.NextAt) > a.Late:
		return fmt.Sprintf("slot %s has not fired, though cron runs", shown(s.NextAt)), task.SlotID(s.Name, s.NextAt), nil
	case s.LastAt.IsZero() || now.Sub(s.LastAt) > keptSlot:
		return "", "", nil
	}
	id = task.SlotID(s.Name, s.LastAt)
	found, err := a.store.ByIDs(ctx, []string{id})
	if err != nil || len(found) > 0 {
		return "", "", err
	}
	again, err := a.store.Schedule(ctx, s.Name) // removed and made again meanwhile
	if errors.Is(err, task.ErrNotFound) || err == nil && again.Revision != s.Revision {
		return "", "", nil
	}
	return fmt.Sprintf("it says that slot %s fired, and no task is there", shown(s.LastAt)), id, err
}

func shown(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return t.Format(time.RFC3339)
}
