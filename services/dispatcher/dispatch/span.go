package dispatch

import (
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	firstSpan = time.Second
	minSpan   = time.Millisecond // the resolution of the database's times
	maxSpan   = 366 * 24 * time.Hour
)

// span is the width of the next window of time to read. It adapts, so that a window holds a quarter more than is wanted: small
// where tasks lie close, doubling through stretches where there are none. A server that collects a window before it looks at
// the limit pays for all that lies in it.
type span struct{ width time.Duration }

// end is where the window that begins at from ends, at most limit.
func (s *span) end(from, limit time.Time) time.Time {
	if s.width == 0 {
		s.width = firstSpan
	}
	if !from.Before(limit) || limit.Sub(from) <= s.width {
		return limit
	}
	return from.Add(s.width)
}

// learn adapts the width: n tasks were found within the time covered, want were wanted.
func (s *span) learn(n, want int, covered time.Duration) {
	covered = max(covered, minSpan)
	if n == 0 {
		s.width = min(2*max(s.width, covered), maxSpan)
		return
	}
	per := covered / time.Duration(n) // between two tasks
	aim := time.Duration(want + (want+3)/4)
	width := per * aim
	if per > 0 && width/per != aim { // overflow
		width = maxSpan
	}
	s.width = min(max(width, minSpan), 2*covered, maxSpan)
	s.width = max(s.width, minSpan)
}

const (
	pageLimit = 1_000          // tasks of one read of the due index
	pileLimit = 16 * pageLimit // the same where all are scheduled for one millisecond
)

// scan goes through a stretch of time in windows, each bounded in width and count.
type scan struct {
	from  time.Time // where the next read begins; may be zero
	pos   time.Time // what lies before is no measure for the width
	end   time.Time
	limit int
	span  *span
}

// window is what to read next.
func (s *scan) window() (from, to time.Time, limit int) {
	if s.limit == 0 {
		s.limit = pageLimit
	}
	return s.from, s.span.end(s.pos, s.end), s.limit
}

// step takes in what was read up to to, and reports whether the end is reached.
func (s *scan) step(page []task.Candidate, to time.Time) (done bool) {
	if len(page) < s.limit {
		s.span.learn(len(page), pageLimit/2, to.Sub(s.pos))
		s.from, s.pos, s.limit = to, to, pageLimit
		return !to.Before(s.end)
	}
	first, last := page[0].ScheduledAt, page[len(page)-1].ScheduledAt
	s.span.learn(len(page), pageLimit/2, last.Sub(first))
	switch {
	case last.After(s.from): // read on from there; that millisecond again
		s.from, s.pos, s.limit = last, last, pageLimit
	case s.limit < pileLimit: // one millisecond fills the page: look deeper into it
		s.limit = pileLimit
	default: // deeper than that is left for when the pile is smaller
		s.from = last.Add(time.Millisecond)
		s.pos, s.limit = s.from, pageLimit
	}
	return !s.from.Before(s.end)
}
