// Package archive moves tasks that ended long ago out of the collection that work goes on in, and deletes them from the archive after a
// longer time. It goes through time in windows that hold about a batch each, and rests after each batch several times as long as the
// batch took, so that live traffic is not slowed.
package archive

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

// Store is what the archiver needs of the database.
type Store interface {
	// Now estimates the database's time.
	Now() (now time.Time, bound time.Duration, err error)
	// LoadCursor returns when a reader of the change stream was last known to be up to date; zero when it never was.
	LoadCursor(ctx context.Context, name string) (token []byte, at time.Time, err error)
	// OldestEnded and OldestArchived return when the first one ended of what is there; false: nothing is.
	OldestEnded(ctx context.Context) (time.Time, bool, error)
	OldestArchived(ctx context.Context) (time.Time, bool, error)
	// EndedWithin returns the ids of tasks with from <= finishedAt < to by their state, at most limit, and how many they are.
	EndedWithin(ctx context.Context, from, to time.Time, limit int) (ids map[task.State][]string, n int, err error)
	// Archive moves those of the tasks that have ended and returns how many.
	Archive(ctx context.Context, ids []string) (int, error)
	// PurgeArchive deletes archived tasks with from <= finishedAt < to.
	PurgeArchive(ctx context.Context, from, to time.Time) (int, error)
}

// Config are the archiver's settings. All are required.
type Config struct {
	Keep    map[task.State]time.Duration // how long after its end a task stays where it is, by outcome
	Purge   time.Duration                // how long after its end it is deleted from the archive
	Cursors []string                     // readers of the change stream, who must have seen an end before the task is moved
	Batch   int                          // tasks of one move
	Every   time.Duration                // pause when nothing is to be done
}

const (
	// margin is how far behind the readers of the change stream the archiver stays: a rebuild of events goes back that far.
	margin = time.Minute
	// rest is how many times as long as a batch took the archiver rests after it.
	rest      = 4
	leastRest = 20 * time.Millisecond
	// A window begins with a minute and follows the density of ends from there.
	firstWindow = time.Minute
	leastWindow = time.Millisecond // the database's times are no finer
	mostWindow  = 24 * time.Hour
	// again is after how long a walk begins anew at the oldest task: the database's clock may have gone back meanwhile, and left ends
	// behind the place that it had reached.
	again = 24 * time.Hour
	// crowd is how many tasks of a least window are read at a time: they were ended by one write or a few.
	crowd = 10_000
)

// Archiver moves and deletes. One at a time is enough; two do no harm.
type Archiver struct {
	cfg    Config
	store  Store
	log    *slog.Logger
	moved  prometheus.Counter
	purged prometheus.Counter
	behind prometheus.Gauge
}

// New makes an archiver and registers its metrics.
func New(cfg Config, store Store, reg prometheus.Registerer, log *slog.Logger) *Archiver {
	a := &Archiver{cfg: cfg, store: store, log: log.With("component", "archive"),
		moved:  prometheus.NewCounter(prometheus.CounterOpts{Name: "ax_reaper_archived_total", Help: "Tasks moved into the archive."}),
		purged: prometheus.NewCounter(prometheus.CounterOpts{Name: "ax_reaper_purged_total", Help: "Tasks deleted from the archive."}),
		behind: prometheus.NewGauge(prometheus.GaugeOpts{Name: "ax_reaper_archive_behind_seconds", Help: "By how much the oldest task that should have been archived is late."}),
	}
	reg.MustRegister(a.moved, a.purged, a.behind)
	return a
}

// walk is a way through time: everything that ended before place has been dealt with.
type walk struct {
	keep   time.Duration
	states []task.State
	place  time.Time // zero: not known yet
	begun  time.Time // monotonic
	window time.Duration
	filled time.Time // from when on tasks were moved that ended; the newest window in which there were any
}

// Run moves and deletes until ctx ends. What fails is logged and tried again.
func (a *Archiver) Run(ctx context.Context) {
	var walks []*walk
	for _, state := range []task.State{task.Success, task.Failed, task.Cancelled} {
		keep := a.cfg.Keep[state]
		i := slices.IndexFunc(walks, func(w *walk) bool { return w.keep == keep })
		if i < 0 {
			i, walks = len(walks), append(walks, &walk{keep: keep, window: firstWindow})
		}
		walks[i].states = append(walks[i].states, state)
	}
	purge := &walk{keep: a.cfg.Purge, window: time.Second} // how much it deletes is known only afterwards
	failing := false
	for {
		wait, err := a.turn(ctx, walks, purge)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			a.log.Warn("cannot archive; trying again", "err", err)
		case err == nil && failing:
			a.log.Info("again able to archive")
		}
		if failing = err != nil; failing {
			wait = a.cfg.Every
		}
		timer := time.NewTimer(wait*9/10 + rand.N(wait/5+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// turn takes each walk one window further and returns how long to rest.
func (a *Archiver) turn(ctx context.Context, walks []*walk, purge *walk) (wait time.Duration, err error) {
	began := time.Now()
	now, bound, err := a.store.Now()
	if err != nil {
		return 0, err
	}
	now = now.Add(-bound)
	seen, err := a.seen(ctx, now)
	if err != nil {
		return 0, err
	}
	goesOn, late := false, time.Duration(0)
	for _, w := range walks {
		more, err := a.step(ctx, w, earlier(now.Add(-w.keep), seen))
		if err != nil {
			return 0, err
		}
		if !w.filled.IsZero() && w.filled.Before(purge.place) { // what has come into the archive may be due for deletion already
			purge.place = w.filled
		}
		goesOn = goesOn || more
		if more {
			late = max(late, now.Add(-w.keep).Sub(w.place))
		}
	}
	a.behind.Set(late.Seconds())
	more, err := a.delete(ctx, purge, now.Add(-purge.keep))
	if err != nil {
		return 0, err
	}
	if goesOn || more {
		return max(leastRest, rest*time.Since(began)), nil
	}
	return a.cfg.Every, nil
}

// seen is up to when the readers of the change stream have surely dealt with everything. One that never ran is waited for: what is
// archived is not found by a rebuild of events.
func (a *Archiver) seen(ctx context.Context, now time.Time) (time.Time, error) {
	for _, name := range a.cfg.Cursors {
		_, at, err := a.store.LoadCursor(ctx, name)
		if err != nil {
			return time.Time{}, err
		}
		now = earlier(now, at)
	}
	return now.Add(-margin), nil
}

// step deals with one window of ends up to until. It reports whether there may be more to do.
func (a *Archiver) step(ctx context.Context, w *walk, until time.Time) (more bool, err error) {
	if ok, err := w.begin(ctx, a.store.OldestEnded); err != nil || !ok {
		return false, err
	}
	if !w.place.Before(until) {
		return false, nil
	}
	to := earlier(w.place.Add(w.window), until)
	limit := a.cfg.Batch
	if w.window <= leastWindow {
		limit = crowd
	}
	ids, n, err := a.store.EndedWithin(ctx, w.place, to, limit+1)
	if err != nil {
		return false, err
	}
	if n > a.cfg.Batch && w.window > leastWindow {
		w.window = max(leastWindow, w.window/4).Truncate(time.Millisecond)
		return true, nil
	}
	var mine []string
	for _, state := range w.states {
		mine = append(mine, ids[state]...)
	}
	for part := range slices.Chunk(mine, a.cfg.Batch) {
		moved, err := a.store.Archive(ctx, part)
		a.moved.Add(float64(moved))
		w.filled = w.place
		if err != nil {
			return false, err
		}
	}
	if n > limit && len(mine) > 0 {
		return true, nil // the rest of the crowd; what was moved is not met again
	}
	w.goOn(to, n < a.cfg.Batch/4)
	return true, nil
}

// delete purges one window of the archive up to until.
func (a *Archiver) delete(ctx context.Context, w *walk, until time.Time) (more bool, err error) {
	if ok, err := w.begin(ctx, a.store.OldestArchived); err != nil || !ok {
		return false, err
	}
	if !w.place.Before(until) {
		return false, nil
	}
	to := earlier(w.place.Add(w.window), until)
	n, err := a.store.PurgeArchive(ctx, w.place, to)
	a.purged.Add(float64(n))
	if err != nil {
		return false, fmt.Errorf("delete what was archived long ago: %w", err)
	}
	if n > a.cfg.Batch {
		w.window = max(leastWindow, w.window/4).Truncate(time.Millisecond)
	}
	w.goOn(to, n < a.cfg.Batch/4)
	return true, nil
}

func (w *walk) begin(ctx context.Context, oldest func(context.Context) (time.Time, bool, error)) (known bool, err error) {
	if !w.place.IsZero() && time.Since(w.begun) < again {
		return true, nil
	}
	at, ok, err := oldest(ctx)
	if err != nil || !ok {
		return false, err
	}
	w.place, w.begun = at, time.Now()
	return true, nil
}

// goOn moves the place and makes the next window larger after a thin one.
func (w *walk) goOn(place time.Time, thin bool) {
	w.place = place
	if thin {
		w.window = min(mostWindow, w.window*2)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
