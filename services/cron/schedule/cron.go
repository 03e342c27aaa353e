// Package schedule turns the slots of stored schedules into tasks, each slot once.
//
// A slot's task has the id cron:<schedule>:<slot>, so whoever fires it a second time finds it there already: two leaders, a
// leader that died between storing the task and moving the schedule on, or a clock that went back can repeat the attempt but
// not the task. That is why no lock has to be believed here, and why the task is stored first and the position second.
//
// Slots that fell due while nothing could fire them were missed. By the schedule's policy the newest of them fires and stands for
// all, or none that is over a minute late, or each within bounds. All times are the database's.
package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/cronexpr"
	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
)

// Store is what cron needs of the database.
type Store interface {
	// Now estimates the database's time; it lies within bound of the truth.
	Now() (now time.Time, bound time.Duration, err error)
	// DueSchedules returns schedules with NextAt up to until, the earliest first.
	DueSchedules(ctx context.Context, until time.Time, limit int) ([]task.Schedule, error)
	// Schedules returns all schedules in the order of their names.
	Schedules(ctx context.Context, after string, limit int) ([]task.Schedule, error)
	// Advance moves schedules on, each only if it still is as it was read, and returns how many moved.
	Advance(ctx context.Context, moves []task.Advance) (moved int, err error)
	// Insert stores tasks; an id that is there already, live or archived, is an answer and not an error.
	Insert(ctx context.Context, tasks []*task.Task) ([]task.InsertStatus, error)
}

// Config are cron's settings. The zero value takes the defaults.
type Config struct {
	Every time.Duration // how often due schedules are looked for; default 1 s. A slot in between is not waited past.
	Page  int           // how many schedules are held and fired at once; default 500
}

// Cron fires schedules. One instance leads at a time, see [Cron.Lead].
type Cron struct {
	cfg     Config
	store   Store
	log     *slog.Logger
	metrics *metrics
}

// New makes a cron and registers its metrics.
func New(cfg Config, store Store, reg prometheus.Registerer, log *slog.Logger) *Cron {
	if cfg.Every <= 0 {
		cfg.Every = time.Second
	}
	if cfg.Page <= 0 {
		cfg.Page = 500
	}
	return &Cron{cfg: cfg, store: store, log: log.With("component", "schedule"), metrics: newMetrics(reg)}
}

// Lead fires what falls due until ctx ends. Errors of the database are waited out.
func (c *Cron) Lead(ctx context.Context, _ task.Lease) error {
	var clock stepBack
	mended, failing := false, false
	for {
		wait, err := c.now(func(now time.Time, bound time.Duration) (time.Duration, error) {
			if clock.stepped(now) {
				c.log.Warn("the database's clock went back; positions are pulled in after it")
				mended = false
			}
			if !mended {
				if err := c.mend(ctx, now.Add(bound)); err != nil {
					return 0, err
				}
				mended = true
			}
			return c.tick(ctx, now.Add(-bound)) // never later than it is, so that nothing fires early
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			c.log.Warn("cannot fire; trying again", "err", err)
		case err == nil && failing:
			c.log.Info("firing again")
		}
		failing = err != nil
		timer := time.NewTimer(min(wait, c.cfg.Every*9/10+rand.N(c.cfg.Every/5+1)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// now calls do with the database's time and the error it may have. It returns what is left of the wait that do asks for.
func (c *Cron) now(do func(now time.Time, bound time.Duration) (time.Duration, error)) (time.Duration, error) {
	now, bound, err := c.store.Now()
	if err != nil {
		return c.cfg.Every, err
	}
	began := time.Now()
	wait, err := do(now, bound)
	if err != nil {
		return c.cfg.Every, err
	}
	return wait - time.Since(began), nil
}

// tick fires all that is due and returns how long from now on there is nothing to do.
func (c *Cron) tick(ctx context.Context, now time.Time) (time.Duration, error) {
	wait := c.cfg.Every
	for {
		page, err := c.store.DueSchedules(ctx, now.Add(c.cfg.Every), c.cfg.Page)
		if err != nil {
			return 0, fmt.Errorf("read due schedules: %w", err)
		}
		due := 0
		for due < len(page) && !page[due].NextAt.After(now) {
			due++
		}
		moved, next, err := c.fire(ctx, page[:due], now)
		if err != nil {
			return 0, err
		}
		if due < len(page) {
			next = append(next, page[due].NextAt)
		}
		for _, slot := range next {
			if !slot.IsZero() {
				wait = min(wait, slot.Sub(now))
			}
		}
		if due < c.cfg.Page || moved == 0 { // nothing moved: others are at it, the next tick sees what they left
			return wait, nil
		}
	}
}

// fire makes the tasks of due schedules, one for each or a part of what it has to catch up on, and moves the schedules on. It returns how many moved, and their next slots.
func (c *Cron) fire(ctx context.Context, due []task.Schedule, now time.Time) (moved int, next []time.Time, err error) {
	if len(due) == 0 {
		return 0, nil, nil
	}
	tasks := make([]*task.Task, 0, len(due))
	moves := make([]task.Advance, 0, len(due))
	for i, s := range due {
		// One each, and what is left of a page for those that catch up: however much was missed, memory stays bounded.
		made, move := c.plan(s, now, 1+max(0, c.cfg.Page-len(tasks)-(len(due)-i)))
		tasks = append(tasks, made...)
		moves = append(moves, move)
		next = append(next, move.To)
	}
	if len(tasks) > 0 {
		statuses, err := c.store.Insert(ctx, tasks)
		if err != nil {
			return 0, nil, fmt.Errorf("store the tasks of slots: %w", err)
		}
		for _, status := range statuses {
			c.metrics.fired(status)
		}
	}
	// Guarded by the position read: a schedule that was edited, deleted or moved on by another leader meanwhile stays as it is.
	if moved, err = c.store.Advance(ctx, moves); err != nil {
		return 0, nil, fmt.Errorf("move schedules on: %w", err)
	}
	return moved, next, nil
}

// plan decides which slots of a due schedule fire, at most limit, and where the schedule stands afterwards. A schedule that cannot fire is
// moved nowhere and says why, so that it does not come up again and the others go on.
func (c *Cron) plan(s task.Schedule, now time.Time, limit int) ([]*task.Task, task.Advance) {
	move := task.Advance{Name: s.Name, Revision: s.Revision, From: s.NextAt}
	expr, err := parse(s)
	if err != nil {
		return nil, c.broken(move, err)
	}
	slots, place, missed := chosen(expr, s, now, limit)
	tasks := make([]*task.Task, len(slots))
	for i, slot := range slots {
		if tasks[i], err = intake.Slot(s, task.SlotID(s.Name, slot)); err != nil {
			return nil, c.broken(move, err)
		}
		c.metrics.late.Observe(now.Sub(slot).Seconds())
		move.LastAt = slot
	}
	if missed {
		c.metrics.missed.Inc()
	}
	if len(slots) == 0 {
		c.log.Info("missed slots are skipped, as the schedule's policy says", "schedule", s.Name, "from", s.NextAt, "to", place)
	}
	if move.To = expr.Next(place); move.To.IsZero() {
		move.Broken = "it has no further slot"
	}
	return tasks, move
}

func (c *Cron) broken(move task.Advance, err error) task.Advance {
	c.log.Error("a schedule cannot fire and is disabled", "schedule", move.Name, "err", err)
	c.metrics.broken.Inc()
	move.Broken = err.Error()
	return move
}

// mend pulls in positions that lie beyond the first slot after now, which is never earlier than it is. Nothing puts one there but a clock that went back
// after slots had fired; and firing such a slot again finds its task.
func (c *Cron) mend(ctx context.Context, now time.Time) error {
	after := ""
	for {
		page, err := c.store.Schedules(ctx, after, c.cfg.Page)
		if err != nil {
			return fmt.Errorf("read schedules: %w", err)
		}
		var moves []task.Advance
		for _, s := range page {
			if s.Broken != "" || s.NextAt.IsZero() {
				continue
			}
			move := task.Advance{Name: s.Name, Revision: s.Revision, From: s.NextAt}
			expr, err := parse(s)
			if err != nil {
				moves = append(moves, c.broken(move, err))
				continue
			}
			if move.To = expr.Next(now); !move.To.IsZero() && move.To.Before(s.NextAt) {
				c.log.Info("pulling in the next slot", "schedule", s.Name, "from", s.NextAt, "to", move.To)
				moves = append(moves, move)
			}
		}
		if len(moves) > 0 {
			if _, err := c.store.Advance(ctx, moves); err != nil {
				return fmt.Errorf("pull in positions: %w", err)
			}
		}
		if len(page) < c.cfg.Page {
			return nil
		}
		after = page[len(page)-1].Name
	}
}

func parse(s task.Schedule) (cronexpr.Schedule, error) {
	expr, err := cronexpr.Parse(s.Cron, s.Zone)
	if err != nil {
		return cronexpr.Schedule{}, err
	}
	return expr.Anchored(s.Anchor), nil
}

// stepBack notices that the database's clock went back, by our monotonic one.
type stepBack struct {
	server time.Time
	own    time.Time
}

// backLimit is what the two clocks and the estimate may differ between two looks.
const backLimit = time.Second

func (s *stepBack) stepped(server time.Time) bool {
	own := time.Now()
	back := !s.own.IsZero() && server.Sub(s.server) < own.Sub(s.own)-backLimit
	s.server, s.own = server, own
	return back
}
