package dispatch

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// offer is a due task that may be signalled now.
type offer struct {
	lane  *lane
	task  task.Candidate
	fresh bool // it has just become pending: a signal about an earlier stay is used up
}

// offer signals due tasks where their lane has room, and leaves the others to the lane's backlog. The caller holds the lock.
func (b *board) offer(offers []offer, now time.Time) {
	if len(offers) > 1 {
		slices.SortStableFunc(offers, func(x, y offer) int {
			if x.lane != y.lane {
				return cmp.Compare(x.lane.number, y.lane.number)
			}
			if positionOf(&x.task).before(positionOf(&y.task)) {
				return -1
			}
			return 1
		})
	}
	for len(offers) > 0 {
		n := 1
		for n < len(offers) && offers[n].lane == offers[0].lane {
			n++
		}
		b.offerLane(offers[0].lane, offers[:n], now)
		offers = offers[n:]
	}
}

// offerLane handles offers of one lane, in the lane's order.
func (b *board) offerLane(l *lane, offers []offer, now time.Time) {
	_, short := b.size(l.key.Type)
	depth := l.depth(now, short)
	open := !now.Before(b.bus.until) && !now.Before(l.notBefore)
	admitted := make([]task.Candidate, 0, len(offers))
	for i := range offers {
		c := &offers[i].task
		if f := b.flying[c.ID]; f != nil {
			switch {
			case f.seq >= c.Seq:
				continue
			case f.lane == l && !offers[i].fresh:
				f.seq = c.Seq // changed where it stands: the signal that is out leads to it as well
				continue
			}
			b.land(c.ID, f, now)
		}
		urgent := l.fed.id != "" && positionOf(c).before(l.fed)
		held := l.held + len(admitted)
		switch {
		case open && !l.backlog && held < depth:
			l.fed = positionOf(c)
			admitted = append(admitted, *c)
		case open && urgent && held < depth+fewBeyond:
			admitted = append(admitted, *c)
		default:
			b.mark(l, c, false, now)
		}
	}
	b.send(l, admitted, now)
	b.wake(l, now)
}

// send puts ids of one lane in flight. The caller holds the lock, so that signals leave in the order of decisions.
func (b *board) send(l *lane, ids []task.Candidate, now time.Time) {
	if len(ids) == 0 {
		return
	}
	size, _ := b.size(l.key.Type)
	signals := group(nil, l.key, ids, size)
	for i := range signals {
		b.number++
		signals[i].number = b.number
		for _, t := range signals[i].tasks {
			b.flying[t.ID] = &flight{lane: l, seq: t.Seq, signal: b.number, sentAt: now}
		}
	}
	l.held += len(ids)
	l.usedAt = now
	b.out(signals)
}

// mark puts a lane in backlog: from now on it is fed from the collection. seen is a task that waits there, nil when none
// is known; walking tells that it was met by the first walk, which comes from the front. The caller holds the lock.
func (b *board) mark(l *lane, seen *task.Candidate, walking bool, now time.Time) {
	if l.backlog {
		if seen != nil { // it may sort before what has been fed
			l.suppose(suppose{priority: seen.Priority, seen: seen.ScheduledAt})
		}
		return
	}
	l.backlog = true
	s := suppose{priority: -1}
	if server, _, err := b.clock.Now(); err == nil && (b.walked || l.drained) {
		s.fed = server.Add(-settled)
	}
	if seen != nil {
		s.priority, s.seen = seen.Priority, seen.ScheduledAt
		if walking && s.fed.IsZero() {
			s.fed = seen.ScheduledAt
		}
	}
	l.suppose(s)
	l.usedAt = now
}

// wake queues a refill of a lane in backlog that has room for one. The caller holds the lock.
func (b *board) wake(l *lane, now time.Time) {
	if !l.backlog || l.refilling {
		return
	}
	if _, short := b.size(l.key.Type); 2*l.held > l.depth(now, short) {
		return
	}
	at := l.notBefore
	if b.bus.until.After(at) {
		at = b.bus.until
	}
	if now.Before(at) {
		b.paused[l] = at
		poke(b.nudged)
		return
	}
	delete(b.paused, l)
	l.refilling = true
	b.queue = append(b.queue, l)
	poke(b.refills)
}

// nudge wakes the lanes whose pause is over, and tells how long the next one has to wait; false when none does.
func (b *board) nudge() (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	var next time.Time
	for l, at := range b.paused {
		if !now.Before(at) {
			delete(b.paused, l)
			b.wake(l, now)
			at = b.paused[l] // paused again, behind a gate that has closed since
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return max(0, next.Sub(now)), !next.IsZero()
}

// published takes in what became of signals: acknowledged, refused or failed. The ids of the last two wait in the database.
func (b *board) published(signals []signal, errs []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	sent, failed := 0, error(nil)
	for i := range signals {
		s := &signals[i]
		if errs[i] == nil {
			sent++
			b.arrived(s)
			continue
		}
		if errors.Is(errs[i], events.ErrFull) {
			sent++ // the bus is there
			b.metrics.refused.Inc()
		} else {
			failed = errs[i]
			b.metrics.failed.Inc()
		}
		b.bounced(s, now)
	}
	switch {
	case sent > 0:
		b.bus = gate{}
	case failed != nil:
		b.bus = gate{until: now.Add(backoff(b.bus.failures)), failures: b.bus.failures + 1, failedAt: now, err: failed}
	}
	for i := range signals {
		if l := b.lanes[signals[i].lane]; l != nil && errs[i] != nil {
			b.wake(l, now)
		}
	}
}

func (b *board) arrived(s *signal) {
	for _, t := range s.tasks {
		if f := b.flying[t.ID]; f != nil && f.signal == s.number {
			f.acked = true
		}
	}
	if l := b.lanes[s.lane]; l != nil {
		l.failures, l.notBefore = 0, time.Time{}
		l.signals.Inc()
		l.ids.Add(float64(len(s.tasks)))
	}
}

func (b *board) bounced(s *signal, now time.Time) {
	l := b.lanes[s.lane]
	for _, t := range s.tasks {
		if f := b.flying[t.ID]; f != nil && f.signal == s.number {
			delete(b.flying, t.ID)
			f.lane.held--
		}
	}
	if l == nil {
		return
	}
	l.whole = true
	if !now.Before(l.notBefore) { // once for all signals of a batch
		l.notBefore = now.Add(backoff(l.failures))
		l.failures++
	}
	b.mark(l, nil, false, now)
}

// ready says why signals cannot be sent; nil when nothing is known against it.
func (b *board) ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bus.failures > 0 && time.Since(b.bus.failedAt) < 3*lastPause {
		return b.bus.err
	}
	return nil
}
