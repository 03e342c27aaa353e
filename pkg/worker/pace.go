package worker

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// Batches of one kind (claims, reports) are sent like this: at once when none is under way, because a lone task should not
// wait; else what comes up meanwhile is gathered, because one large batch costs the database far less than many small ones.
// A second batch goes out beside the first only when it is large, or when the first one is unusually slow.
const (
	maxInFlight = 2
	largeBatch  = 64
	slowBatch   = 25 * time.Millisecond
	// company is how long a batch that could be sent at once waits when others are about to join it.
	company = time.Millisecond
	// finishApart is how far apart small batches of reports are sent. Nobody waits for a report to start something, and each batch
	// costs the database about as much as three reports do. A lone report is sent at once.
	finishApart = 10 * time.Millisecond
)

// pace holds the times at which the batches under way were sent, and how long they take.
type pace struct {
	apart time.Duration // between the starts of small batches
	last  time.Time     // when a batch was sent last
	sent  []time.Time
	mean  time.Duration // moving average
	since time.Time     // when the next batch began to wait for company; zero: it does not
}

// allows reports whether a batch of n may be sent now. If not, and time alone may change that, wait is how long. With more,
// others are about to join the batch.
func (p *pace) allows(n int, more bool, now time.Time) (ok bool, wait time.Duration) {
	switch {
	case n == 0 || len(p.sent) >= maxInFlight:
		return false, 0
	case n >= largeBatch:
		return true, 0
	case now.Sub(p.last) < p.apart:
		return false, p.apart - now.Sub(p.last)
	case len(p.sent) > 0:
		wait = max(slowBatch, 3*p.mean) - now.Sub(p.sent[0])
		return wait <= 0, wait
	case more:
		if p.since.IsZero() {
			p.since = now
		}
		wait = company - now.Sub(p.since)
		return wait <= 0, wait
	}
	return true, 0
}

func (p *pace) start(now time.Time) {
	p.sent, p.last = append(p.sent, now), now
	p.since = time.Time{}
}

func (p *pace) end(sent, now time.Time) {
	if i := slices.Index(p.sent, sent); i >= 0 {
		p.sent = slices.Delete(p.sent, i, i+1)
	}
	p.mean += (now.Sub(sent) - p.mean) / 8
}

// jitter moves d by up to a tenth either way, so that the loops of many workers do not fall into step.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// backoff is the pause after failure n (from 1): it doubles from first to most, and is shortened by up to half at random.
func backoff(n int, first, most time.Duration) time.Duration {
	d := min(most, first<<min(max(n-1, 0), 20))
	return d/2 + rand.N(d/2+1)
}

// pause waits for d; false when ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// idleTimer makes a timer that does not fire before it is set.
func idleTimer() *time.Timer { return time.NewTimer(24 * time.Hour) }

// bell wakes one loop. Rings while it is awake are remembered as one.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}
