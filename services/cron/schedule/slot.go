package schedule

import (
	"time"

	"github.com/ax-scheduler/ax/internal/cronexpr"
	"github.com/ax-scheduler/ax/internal/task"
)

// chosen returns the slots of a due schedule that fire by its policy for missed ones, at most limit and the oldest first, and the
// slot it has got to. missed tells whether slots were passed over for good.
func chosen(expr cronexpr.Schedule, s task.Schedule, now time.Time, limit int) (slots []time.Time, place time.Time, missed bool) {
	if s.Misfire == task.MisfireAll {
		slots, missed = newestOf(expr, s, now)
		slots = slots[:min(len(slots), limit)]
		if len(slots) > 0 {
			return slots, slots[len(slots)-1], missed
		}
	}
	place, missed = newest(expr, s.NextAt, now)
	if s.Misfire == task.MisfireSkip && now.Sub(place) > task.SkipAfter || s.Misfire == task.MisfireAll {
		return nil, place, true
	}
	return []time.Time{place}, place, missed
}

// newestOf returns those of the slots from s.NextAt up to now that [task.MisfireAll] fires, the oldest first. As newest does, it looks back
// ever further, so that its cost follows what it returns and not the downtime.
func newestOf(expr cronexpr.Schedule, s task.Schedule, now time.Time) (slots []time.Time, missed bool) {
	bound := now.Add(-s.CatchUp)
	whole := !s.NextAt.Before(bound) // all that was missed lies within the bound
	if whole {
		bound = s.NextAt
	}
	for window := time.Minute; ; window *= 4 {
		from := now.Add(-window)
		last := !from.After(bound)
		if last {
			from = bound
		}
		slots = slots[:0]
		for slot := expr.Next(from.Add(-time.Nanosecond)); !slot.IsZero() && !slot.After(now); slot = expr.Next(slot) {
			slots = append(slots, slot)
		}
		if n := len(slots); n > s.CatchUpMax {
			return slots[n-s.CatchUpMax:], true
		}
		if last {
			return slots, !whole
		}
	}
}

// newest returns the last slot at or before now, given that slot is one of them and the oldest that has not fired. Slots in
// between were missed; missed tells whether there were any.
//
// The last slot is looked for in windows that reach back ever further from now, so that an entry of every second does not
// have to be followed through a month of downtime.
func newest(expr cronexpr.Schedule, slot, now time.Time) (last time.Time, missed bool) {
	passed := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
	if !passed(expr.Next(slot)) {
		return slot, false
	}
	for window := time.Minute; ; window *= 4 {
		from := now.Add(-window)
		if from.Before(slot) {
			from = slot
		}
		last = expr.Next(from)
		if passed(last) {
			break
		}
	}
	for {
		next := expr.Next(last)
		if !passed(next) {
			return last, true
		}
		last = next
	}
}
