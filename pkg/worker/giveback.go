package worker

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	// extendEvery is how often the server hears that a message is held; it would deliver it again after 5 s.
	extendEvery = 2 * time.Second
	// passTimeout bounds the publishing of what is left of a signal.
	passTimeout = 2 * time.Second
)

// rest is what is left of a signal that was claimed in part.
type rest struct {
	from  *signal
	tasks []events.SignalTask
}

// unstartable removes what waited too long for a slot: signals none of whose ids was claimed (to be refused, so that the
// server delivers them again) and the rests of others. With all, it removes everything, because the worker stops.
func (q *intake) unstartable(now time.Time, all bool) (whole []*signal, rests []rest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	gone := make(map[*signal][]events.SignalTask)
	sift := func(list []*want, drop func(*want) bool) []*want {
		kept := list[:0]
		for _, w := range list {
			if drop(w) {
				gone[w.from] = append(gone[w.from], w.SignalTask)
			} else {
				kept = append(kept, w)
			}
		}
		clear(list[len(kept):])
		return kept
	}
	q.waiting = sift(q.waiting, func(w *want) bool {
		// Slots kept for a claim under way may be free again in a moment; those of handlers are not, if none has begun or returned for a while.
		stuck := q.running >= q.slots && now.Sub(q.moved) >= holdBusy || w.kind.running >= w.kind.limit && now.Sub(w.kind.moved) >= holdBusy
		if !all && (!stuck || now.Sub(w.born) < holdBusy) {
			return false
		}
		w.kind.waiting--
		return true
	})
	if all {
		q.found = nil
		q.early = sift(q.early, func(*want) bool { return true })
	}
	for s, tasks := range gone {
		if len(tasks) == s.ids {
			delete(q.held, s)
			whole = append(whole, s)
		} else {
			rests = append(rests, rest{from: s, tasks: tasks})
		}
	}
	return whole, rests
}

// giveBack passes on what this worker cannot start, for others: a whole signal is refused, a rest is published as a new
// signal before the old one may be acknowledged.
func (q *intake) giveBack(ctx context.Context, b bus, whole []*signal, rests []rest) {
	for _, s := range whole {
		_ = s.msg.NakWithDelay(0) // lost: it comes again after its wait
	}
	q.metrics.returned.Add(float64(len(whole) + len(rests)))
	for _, r := range rests {
		ctx, cancel := context.WithTimeout(ctx, passTimeout)
		err := b.Signal(ctx, r.from.subject, events.Signal{Tasks: r.tasks})
		cancel()
		if err != nil {
			q.log.warn("rest of a signal cannot be passed on, it is delivered again", "subject", r.from.subject, "err", err)
		}
		q.mu.Lock()
		r.from.spoiled = r.from.spoiled || err != nil
		done := q.decide(r.from, len(r.tasks), nil)
		q.mu.Unlock()
		settle(done)
	}
}

// extend tells the server of the messages that are held for longer.
func (q *intake) extend(now time.Time) {
	var held []*signal
	q.mu.Lock()
	for s := range q.held {
		if !s.spoiled && now.Sub(s.extended) >= extendEvery {
			s.extended = now
			held = append(held, s)
		}
	}
	q.mu.Unlock()
	for _, s := range held {
		_ = s.msg.InProgress() // lost: it is delivered again, and the second claim of its tasks wins nothing
	}
}

// close ends all claiming. What is held stays for the caller to give back.
func (q *intake) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
