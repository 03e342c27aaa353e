package dispatch

import (
	"context"
	"log/slog"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// walker looks at all that is due, from the front to now, once a minute and whenever changes may have been missed. It finds
// the task whose change and signal were both lost. It goes in windows and pauses between them, so that a deep backlog costs
// it time and the database little.
type walker struct {
	board   *board
	store   Store
	metrics *Metrics
	log     *slog.Logger
	every   time.Duration
	rescan  <-chan struct{}
	grace   func() time.Duration

	front time.Time // where the first due task stood the last time; zero: not known
	span  span
}

func (w *walker) run(ctx context.Context) error {
	failing := false
	for {
		pace := 3 // a quarter of the time is spent reading
		timer := time.NewTimer(jittered(w.every))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-w.rescan:
			pace = 1
		}
		timer.Stop()
		err := w.walk(ctx, pace)
		for wait := 0; err != nil && ctx.Err() == nil; wait++ {
			if !failing {
				w.log.Warn("cannot walk what is due", "err", err)
			}
			failing = true
			sleep(ctx, backoff(wait))
			err = w.walk(ctx, pace)
		}
		failing = false
	}
}

// walk goes once from the front to what is due now.
func (w *walker) walk(ctx context.Context, pace int) error {
	now, bound, err := w.store.Now()
	if err != nil {
		return err
	}
	w.metrics.walks.Inc()
	end := now.Add(-bound).Add(-w.grace())
	if w.front.IsZero() {
		if first, err := w.page(ctx, time.Time{}, end, end, 1); err != nil {
			return err
		} else if len(first) > 0 {
			w.front = first[0].ScheduledAt
		} else {
			w.front = end
		}
	}
	var front time.Time
	pos := earlier(w.front, end)
	through := scan{pos: pos, end: end, span: &w.span} // from the very front: something earlier may have come since
	for done := false; !done; {
		began := time.Now()
		from, to, limit := through.window()
		page, err := w.page(ctx, from, to, end, limit)
		if err != nil {
			return err
		}
		if front.IsZero() && len(page) > 0 {
			front = page[0].ScheduledAt
		}
		if done = through.step(page, to); !done {
			sleep(ctx, time.Duration(pace)*time.Since(began))
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	w.front = front
	if front.IsZero() {
		w.front = end
	}
	w.board.hasWalked()
	return nil
}

func (w *walker) page(ctx context.Context, from, to, dueBy time.Time, limit int) ([]task.Candidate, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	defer w.board.reading()()
	page, err := w.store.Due(ctx, from, to, limit)
	if err != nil {
		return nil, err
	}
	w.metrics.found.WithLabelValues("walk").Add(float64(w.board.found(page, dueBy, dueBy, true)))
	return page, nil
}
