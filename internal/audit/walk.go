package audit

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	firstWindow = time.Second
	leastWindow = time.Millisecond // times are whole milliseconds
	mostWindow  = 50 * 365 * 24 * time.Hour
	windowLimit = 500
)

// walk reads what an index of time holds, window by window. A window grows where little is found and shrinks where much is, so that
// no read is large on servers that collect every match before they look at the limit.
type walk struct {
	read  func(ctx context.Context, from, to time.Time, limit int) ([]*task.Task, error)
	each  func(ctx context.Context, from, to time.Time, visit func([]*task.Task) error) error
	visit func([]*task.Task) error
}

// all visits everything: from the middle back to since (zero: to the beginning), then onwards.
func (w walk) all(ctx context.Context, middle, since time.Time) error {
	middle = middle.Truncate(time.Millisecond)
	back := func(edge time.Time, window time.Duration) (from, to, next time.Time, last bool) {
		from = edge.Add(-window)
		if last = !from.After(since) || window >= mostWindow; last {
			from = since
		}
		return from, edge, from, last
	}
	on := func(edge time.Time, window time.Duration) (from, to, next time.Time, last bool) {
		if window >= mostWindow {
			return edge, time.Time{}, time.Time{}, true
		}
		to = edge.Add(window)
		return edge, to, to, false
	}
	if middle.After(since) {
		if err := w.steps(ctx, middle, back); err != nil {
			return err
		}
		since = middle
	}
	return w.steps(ctx, since, on)
}

func (w walk) steps(ctx context.Context, edge time.Time, step func(time.Time, time.Duration) (from, to, next time.Time, last bool)) error {
	for window := firstWindow; ; {
		from, to, next, last := step(edge, window)
		if window <= leastWindow {
			if err := w.each(ctx, from, to, w.visit); err != nil {
				return err
			}
			edge, window = next, 2*window
			if last {
				return nil
			}
			continue
		}
		tasks, err := w.read(ctx, from, to, windowLimit)
		if err != nil {
			return err
		}
		if len(tasks) == windowLimit { // there may be more in it
			window = max(window/4, leastWindow)
			continue
		}
		if err := w.visit(tasks); err != nil {
			return err
		}
		if last {
			return nil
		}
		if edge = next; len(tasks) < windowLimit/4 {
			window = min(2*window, mostWindow)
		}
	}
}
