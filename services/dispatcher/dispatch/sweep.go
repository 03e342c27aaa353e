package dispatch

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	sweepOverlap = 3 * time.Second // looked at again each time: what committed late, and what was left to the stream
	streamGrace  = time.Second     // what is due for less than this is left to the change stream
	sweepPages   = 4               // of one sweep; the next goes on where it ended
	readTimeout  = 20 * time.Second
)

// sweeper looks every few seconds at what has fallen due since the last time, and at what falls due soon.
type sweeper struct {
	board   *board
	store   Store
	mode    *mode
	metrics *Metrics
	log     *slog.Logger
	every   time.Duration
	horizon time.Duration
	behind  time.Duration // what lies further back is the walk's

	high time.Time // swept up to here, by the database's clock
	full bool      // the last sweep had to stop there, before what is due now
	span span
	soon span
}

func (s *sweeper) run(ctx context.Context) error {
	failing := false
	for ctx.Err() == nil {
		err := s.turn(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			s.log.Warn("cannot sweep", "err", err)
		}
		failing = err != nil
		every := s.every
		if !s.mode.streaming.Load() {
			every /= 4 // the sweep is all there is
		}
		sleep(ctx, jittered(every))
	}
	return nil
}

func (s *sweeper) grace() time.Duration {
	if s.mode.streaming.Load() {
		return streamGrace
	}
	return 0
}

// turn sweeps once, in windows: first what has fallen due, then what falls due soon. Where more is due than a few pages
// hold, which happens beside a deep backlog only, the next turn goes on from there.
func (s *sweeper) turn(ctx context.Context) error {
	now, bound, err := s.store.Now()
	if err != nil {
		return err
	}
	server := now.Add(-bound)
	dueBy := server.Add(-s.grace())
	from := s.high
	switch {
	case s.high.IsZero(), s.high.After(dueBy), dueBy.Sub(s.high) > s.behind:
		from = dueBy.Add(-sweepOverlap) // the first time, or one of the clocks has jumped, or too much is due
	case !s.full:
		from = from.Add(-sweepOverlap)
	}
	past := scan{from: from, pos: from, end: server, span: &s.span}
	done, err := s.sweep(ctx, &past, dueBy, server)
	if err != nil {
		return err
	}
	if done {
		s.high, s.full = dueBy, false
	} else {
		s.high, s.full = past.from, true
	}
	if s.board.timerRoom() == 0 {
		return nil
	}
	_, err = s.sweep(ctx, &scan{from: server, pos: server, end: now.Add(s.horizon), span: &s.soon}, dueBy, server)
	return err
}

func (s *sweeper) sweep(ctx context.Context, through *scan, dueBy, server time.Time) (done bool, err error) {
	for pages := 0; pages < sweepPages && !done; pages++ {
		from, to, limit := through.window()
		page, err := s.page(ctx, from, to, limit, dueBy, server)
		if err != nil {
			return false, err
		}
		done = through.step(page, to)
	}
	return done, nil
}

func (s *sweeper) page(ctx context.Context, from, to time.Time, limit int, dueBy, server time.Time) ([]task.Candidate, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	defer s.board.reading()()
	page, err := s.store.Due(ctx, from, to, limit)
	if err != nil {
		return nil, err
	}
	s.metrics.found.WithLabelValues("sweep").Add(float64(s.board.found(page, dueBy, server, false)))
	return page, nil
}

// jittered spreads d over 3/4 to 5/4 of it.
func jittered(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }
