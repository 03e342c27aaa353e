package dispatch

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// position is a place in the exact order of a lane.
type position struct {
	priority int
	at       time.Time
	id       string
}

func positionOf(c *task.Candidate) position { return position{c.Priority, c.ScheduledAt, c.ID} }

// before reports whether p is more urgent than q: priority, then scheduledAt, then id.
func (p position) before(q position) bool {
	if p.priority != q.priority {
		return p.priority < q.priority
	}
	if !p.at.Equal(q.at) {
		return p.at.Before(q.at)
	}
	return p.id < q.id
}

// front reads one priority of one lane in exact order. Up to its frontier everything was fed, and what comes to sort earlier
// (revived, re-prioritised, committed late) moves the frontier back when its change is seen, so a read begins there. A whole
// read begins at the very front: it also finds what sorts earlier and whose change was never seen, and it costs the ids in
// flight, which are read and passed over. The frontier only places the windows; a wrong one costs time, never a task.
type front struct {
	at   time.Time // the frontier; zero: not known
	span span
}

// query says what to read. end is exclusive.
type query struct {
	lane     Lane
	priority int
	want     int  // how many new ids
	held     int  // how many ids of the lane may be in the way, being in flight
	whole    bool // from the very front
	end      time.Time
}

// read returns up to q.want candidates in exact order, without those that skip refuses. more is false when nothing but
// these was left.
func (f *front) read(ctx context.Context, store Backlog, q query, skip func(*task.Candidate) bool) (got []task.Candidate, more bool, err error) {
	if f.at.IsZero() {
		first, found, err := store.Front(ctx, q.lane.Type, q.lane.Channel, q.priority)
		if err != nil {
			return nil, false, err
		}
		f.at = first
		if !found {
			f.at = q.end
			return nil, false, nil
		}
	}
	pos := earlier(f.at, q.end)
	from := pos
	if q.whole {
		from = time.Time{}
	}
	for {
		to := f.span.end(pos, q.end)
		limit := q.want - len(got) + q.held + 1
		page, err := store.Candidates(ctx, task.Window{
			Type: q.lane.Type, Channel: q.lane.Channel, Priority: q.priority, From: from, To: to, Limit: limit,
		})
		if err != nil {
			return nil, false, err
		}
		cut := len(page) >= limit
		f.learn(page, pos, to, cut, q.want)
		taken := time.Time{}
		for i := range page {
			c := &page[i]
			if !skip(c) {
				if len(got) == q.want {
					f.at = taken
					return got, true, nil
				}
				got = append(got, *c)
			}
			taken = c.ScheduledAt
		}
		if cut {
			f.at = taken
			return got, true, nil
		}
		f.at = to
		if !to.Before(q.end) {
			return got, false, nil
		}
		if len(got) == q.want {
			return got, true, nil
		}
		from, pos = to, to
	}
}

// learn tells the span how dense the window's part beyond the frontier was. What lies before it is no measure.
func (f *front) learn(page []task.Candidate, pos, to time.Time, cut bool, want int) {
	beyond := page
	for len(beyond) > 0 && beyond[0].ScheduledAt.Before(pos) {
		beyond = beyond[1:]
	}
	switch {
	case !cut:
		f.span.learn(len(beyond), want, to.Sub(pos))
	case len(beyond) > 0:
		f.span.learn(len(beyond), want, beyond[len(beyond)-1].ScheduledAt.Sub(beyond[0].ScheduledAt))
	}
}

// suppose moves the frontier to where a task was seen waiting, or to where everything before is known to be fed.
func (f *front) suppose(fed, seen time.Time) {
	if fed.After(f.at) {
		f.at = fed
	}
	if !seen.IsZero() && !f.at.IsZero() && seen.Before(f.at) {
		f.at = seen
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
