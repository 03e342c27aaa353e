package dispatch

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	fireLimit = 1_000                  // timers fired under one lock
	fireCheck = time.Second            // a timer is looked at again after this: the database's clock may have moved
	noClock   = 250 * time.Millisecond // wait while the database's time is not known
)

// ring fires the timers: each task that falls due soon is offered to its lane at its time.
func (b *board) ring(ctx context.Context) error { return watch(ctx, b.rung, b.fire) }

// nudges wakes lanes whose pause after a refusal or failure is over.
func (b *board) nudges(ctx context.Context) error { return watch(ctx, b.nudged, b.nudge) }

// watch looks whenever it is kicked and as long after a look as that said; a look that says false waits for a kick.
func watch(ctx context.Context, kick <-chan struct{}, look func() (time.Duration, bool)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-kick:
		case <-timer.C:
		}
		timer.Stop()
		if wait, any := look(); any {
			timer.Reset(wait)
		}
	}
}

// fire offers what is due, and tells how long until it should be asked again; false when no timer is set.
func (b *board) fire() (time.Duration, bool) {
	server, bound, err := b.clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		return noClock, len(b.timers.heap) > 0
	}
	// Behind the estimate by its error, so that a worker whose own estimate is as careful finds the task due.
	dueBy := server.Add(-bound)
	now := time.Now()
	if tasks := b.timers.due(dueBy, fireLimit); len(tasks) > 0 {
		offers := make([]offer, len(tasks))
		for i, c := range tasks {
			offers[i] = offer{lane: b.lane(c.Type, c.Channel, c.Priority, now), task: c}
		}
		b.offer(offers, now)
	}
	next, any := b.timers.next()
	return min(max(0, next.Sub(dueBy)), fireCheck), any
}

// found takes in what a read of the due index has shown. A lane that has a due task which is not in flight is put in
// backlog, so that it is fed from its front in order. Due is what was scheduled before dueBy; what lies between dueBy and
// server is left to the change stream a moment longer, and what comes after gets a timer. It returns how many were found
// that nobody had signalled.
func (b *board) found(page []task.Candidate, dueBy, server time.Time, walking bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	found := 0
	for i := range page {
		c := &page[i]
		switch {
		case c.ScheduledAt.After(server):
			if !b.exits.left(c) {
				b.watch(*c, server)
			}
			continue
		case c.ScheduledAt.After(dueBy), b.flying[c.ID] != nil, b.exits.left(c):
			continue
		}
		l := b.lane(c.Type, c.Channel, c.Priority, now)
		if l.backlog {
			continue
		}
		found++
		b.mark(l, c, walking && !b.walked, now)
		b.wake(l, now)
	}
	return found
}

// reading remembers exits while the due index is read, from before the read until its result was taken in.
func (b *board) reading() (done func()) {
	b.mu.Lock()
	b.exits.begin()
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		b.exits.end()
		b.mu.Unlock()
	}
}

func (b *board) hasWalked() {
	b.mu.Lock()
	b.walked = true
	b.mu.Unlock()
}

func (b *board) timerRoom() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.timers.room()
}
