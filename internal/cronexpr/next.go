package cronexpr

import (
	"math/bits"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed expression. The zero value never fires. It is immutable and safe for concurrent use.
type Schedule struct {
	every  time.Duration // of "@every"; 0: the fields of spec count
	anchor time.Time

	spec    cron.SpecSchedule // its bit sets only; its own search is wrong around changes of the clock
	loc     *time.Location
	elapsed bool
}

// Every returns the interval of an "@every" schedule, and 0 for any other.
func (s Schedule) Every() time.Duration { return s.every }

// Anchored returns the schedule with its "@every" slots at anchor + k x interval, for every whole k. Any other schedule is
// returned as it is. Without an anchor the slots are counted from 1970.
func (s Schedule) Anchored(anchor time.Time) Schedule {
	s.anchor = anchor.Truncate(time.Second)
	return s
}

// Next returns the first slot strictly after the given time, in UTC and whole seconds. It returns the zero time if there is
// none within twelve years, which happens to no schedule that [Parse] accepted.
func (s Schedule) Next(after time.Time) time.Time {
	switch {
	case s.every > 0:
		return s.nextEvery(after)
	case s.loc == nil:
		return time.Time{}
	case s.elapsed:
		return s.nextElapsed(after)
	default:
		return s.nextCalendar(after)
	}
}

func (s Schedule) nextEvery(after time.Time) time.Time {
	anchor := s.anchor
	if anchor.IsZero() {
		anchor = time.Unix(0, 0)
	}
	// In seconds: a time.Duration does not span the years between any two times.
	step := int64(s.every / time.Second)
	distance := after.Unix() - anchor.Unix()
	k := distance / step
	if distance%step < 0 {
		k-- // towards the past
	}
	return time.Unix(anchor.Unix()+(k+1)*step, 0).UTC()
}

// A wall time below is what a clock on the wall shows, kept in a time.Time as if it were UTC. Between two changes of the
// clock, wall time is instant + offset.

func (s Schedule) nextElapsed(after time.Time) time.Time {
	t := time.Unix(after.Unix()+1, 0)
	for last := after.UTC().Year() + horizon; t.Year() <= last; {
		offset, _, end := stretch(t, s.loc)
		wall := s.nextWall(t.UTC().Add(offset))
		if wall.IsZero() {
			return time.Time{}
		}
		if instant := wall.Add(-offset); end.IsZero() || instant.Before(end) {
			return instant
		}
		t = end
	}
	return time.Time{}
}

// nextCalendar relies on that instants grow with their wall times: so no earlier wall time than that of after can lead past
// it, and the first one that does is the answer.
func (s Schedule) nextCalendar(after time.Time) time.Time {
	offset, _, _ := stretch(after, s.loc)
	wall := time.Unix(after.Unix(), 0).UTC().Add(offset)
	for {
		wall = s.nextWall(wall.Add(time.Second))
		if wall.IsZero() {
			return time.Time{}
		}
		if instant := firstInstant(wall, s.loc); instant.After(after) {
			return instant
		}
	}
}

// firstInstant returns when a clock in loc first shows the wall time or, if the wall time is skipped, the end of the gap.
func firstInstant(wall time.Time, loc *time.Location) time.Time {
	t := wall.Add(-26 * time.Hour) // earlier than any offset allows
	for {
		offset, start, end := stretch(t, loc)
		instant := wall.Add(-offset)
		switch {
		case !end.IsZero() && !instant.Before(end):
			t = end
		case instant.Before(start): // the stretch before ended too early, this one begins too late
			return start
		default:
			return instant
		}
	}
}

// stretch returns the offset from UTC at t in loc, and from when until when it stays so; a zero end means for ever.
func stretch(t time.Time, loc *time.Location) (offset time.Duration, start, end time.Time) {
	t = t.In(loc)
	_, seconds := t.Zone()
	start, end = t.ZoneBounds()
	return time.Duration(seconds) * time.Second, start.UTC(), end.UTC()
}

// horizon is how far the search goes: 29 February may be eight years away.
const horizon = 12

// nextWall returns the first wall time from wall on that the fields match, or the zero time.
func (s Schedule) nextWall(wall time.Time) time.Time {
	year, month, day := wall.Date()
	hour, minute, second := wall.Clock()
	for last := year + horizon; year <= last; {
		if !has(s.spec.Month, int(month)) {
			year, month, day = time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).Date()
			hour, minute, second = 0, 0, 0
			continue
		}
		if s.matchesDay(year, month, day) {
			if h, m, sec, ok := s.nextClock(hour, minute, second); ok {
				return time.Date(year, month, day, h, m, sec, 0, time.UTC)
			}
		}
		year, month, day = time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC).Date()
		hour, minute, second = 0, 0, 0
	}
	return time.Time{}
}

// starBit is how the parser marks a field that is * or ?.
const starBit = 1 << 63

func (s Schedule) matchesDay(year int, month time.Month, day int) bool {
	dom := has(s.spec.Dom, day)
	dow := has(s.spec.Dow, int(time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()))
	if s.spec.Dom&starBit != 0 || s.spec.Dow&starBit != 0 {
		return dom && dow
	}
	return dom || dow
}

// nextClock returns the first time of day from hour:minute:second on that the fields match.
func (s Schedule) nextClock(hour, minute, second int) (h, m, sec int, ok bool) {
	for h = from(s.spec.Hour, hour); h >= 0; h = from(s.spec.Hour, h+1) {
		if h > hour {
			minute, second = 0, 0
		}
		for m = from(s.spec.Minute, minute); m >= 0; m = from(s.spec.Minute, m+1) {
			if m > minute {
				second = 0
			}
			if sec = from(s.spec.Second, second); sec >= 0 {
				return h, m, sec, true
			}
		}
	}
	return 0, 0, 0, false
}

func has(set uint64, n int) bool { return set&(1<<n) != 0 }

// from returns the smallest member of the set that is at least n, or -1.
func from(set uint64, n int) int {
	rest := (set &^ starBit) >> n << n
	if rest == 0 {
		return -1
	}
	return bits.TrailingZeros64(rest)
}
