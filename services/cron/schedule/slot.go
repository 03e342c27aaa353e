package schedule

import (
	"time"

	"github.com/ax-scheduler/ax/internal/cronexpr"
)

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
