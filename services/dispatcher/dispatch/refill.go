package dispatch

import (
	"context"
	"log/slog"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	refillers     = 4 // refills at a time, of different lanes
	refillTimeout = 20 * time.Second
)

// refiller feeds lanes in backlog from the collection. Several run; a lane is with one of them at a time.
type refiller struct {
	board   *board
	store   Store
	metrics *Metrics
	log     *slog.Logger
}

func (r *refiller) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.board.refills:
		}
		for l := r.board.pop(); l != nil && ctx.Err() == nil; l = r.board.pop() {
			r.refill(ctx, l)
		}
	}
}

// refill feeds one lane. When the collection holds no more than what was taken, the lane leaves backlog: its mark is
// cleared first, and then it is read once more, for what came while the mark still told others to leave tasks to us.
func (r *refiller) refill(ctx context.Context, l *lane) {
	ctx, cancel := context.WithTimeout(ctx, refillTimeout)
	defer cancel()
	defer r.board.release(l)
	if !r.board.open(l) {
		return // the bus went away while the lane was queued
	}
	r.metrics.refills.Inc()
	for again := false; ; again = true {
		more, err := r.feed(ctx, l)
		if err != nil {
			if r.board.putOff(l) == 1 && ctx.Err() == nil { // said once for a row of failures
				r.log.Warn("cannot read a lane's backlog", "lane", l.key.String(), "err", err)
			}
			return
		}
		if more {
			r.board.keep(l)
			return
		}
		if again {
			return
		}
		r.board.clear(l)
	}
}

// feed reads in exact order until the lane is full, and signals what it found. more tells that there may be more.
func (r *refiller) feed(ctx context.Context, l *lane) (more bool, err error) {
	now, bound, err := r.store.Now()
	if err != nil {
		return false, err
	}
	want, held := r.board.wanted(l)
	whole := r.board.fromFront(l)
	var got []task.Candidate
	first, last := l.key.Lane.Priorities()
	for p := first; p <= last && !more; p++ {
		var part []task.Candidate
		q := query{
			lane: l.key, priority: p, want: want - len(got), held: held, whole: whole,
			end: now.Add(-bound).Add(time.Millisecond), // to the millisecond that is due, included
		}
		part, more, err = l.fronts[p-first].read(ctx, r.store, q, func(c *task.Candidate) bool { return r.board.taken(l, c) })
		if err != nil {
			return false, err
		}
		got = append(got, part...)
		more = more || len(got) >= want && p < last
	}
	all := r.board.feed(l, got)
	return more || !all, nil
}

// pop takes the next lane that waits for a refill.
func (b *board) pop() *lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.queue = nil
		return nil
	}
	l := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	l.exits.begin()
	return l
}

// open reports whether signals of the lane may be sent now.
func (b *board) open(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	return !now.Before(b.bus.until) && !now.Before(l.notBefore)
}

// wanted is how many ids the lane takes now, at least one, and how many are in flight.
func (b *board) wanted(l *lane) (want, held int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, short := b.size(l.key.Type)
	return max(1, l.depth(time.Now(), short)-l.held), l.held
}

// fromFront reports whether this refill reads from the very front. A read that is meant to tell that nothing is left always does.
func (b *board) fromFront(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !l.whole && l.backlog && now.Sub(l.wholeAt) < wholeEvery {
		return false
	}
	l.whole, l.wholeAt = false, now
	return true
}

// taken reports whether a candidate that was read is in flight, or has left pending since.
func (b *board) taken(l *lane, c *task.Candidate) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flying[c.ID] != nil || l.exits.left(c)
}

// feed signals what a refill has read, in its order. What has been signalled or has left since is passed over; what the
// lane has no room for any more is left, and then it returns false. While the bus is away nothing is sent.
func (b *board) feed(l *lane, got []task.Candidate) (all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if now.Before(b.bus.until) || now.Before(l.notBefore) {
		b.mark(l, nil, false, now) // it may have been cleared
		l.whole = true             // what was read lies behind the frontier now
		return len(got) == 0
	}
	_, short := b.size(l.key.Type)
	room := max(0, l.depth(now, short)-l.held)
	fed := got[:0]
	all = true
	for i := range got {
		switch {
		case b.flying[got[i].ID] != nil, l.exits.left(&got[i]):
		case len(fed) == room:
			all = false
		default:
			fed = append(fed, got[i])
		}
	}
	if !all {
		l.whole = true // what is left lies behind the frontier now
	}
	if len(fed) > 0 {
		l.fed = positionOf(&fed[len(fed)-1])
	}
	l.unread = 0
	b.send(l, fed, now)
	return all
}

func (b *board) clear(l *lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.backlog, l.drained = false, true
}

// keep leaves the lane in backlog, or puts it back there.
func (b *board) keep(l *lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.backlog = true
}

// putOff leaves the lane in backlog for a while and tells how often that has happened in a row.
func (b *board) putOff(l *lane) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.backlog, l.whole = true, true
	l.notBefore = time.Now().Add(backoff(l.unread))
	l.unread++
	return l.unread
}

// release ends a refill. The lane is queued again if it has drained meanwhile.
func (b *board) release(l *lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.exits.end()
	l.refilled()
	b.wake(l, time.Now())
}
