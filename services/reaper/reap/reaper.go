// Package reap ends what nobody else will end: executions whose owner stopped extending its lease, attempts past their
// deadline, cancel requests that a handler ignores, and tasks that expired before they could start.
//
// A lease that is over is no proof that its owner is gone. So a sweep goes ahead only while the database has been within
// reach and its clock steady for long enough that every live worker could have extended its leases, see watch. And every
// write is guarded by the claim and lease that were read, so a report that came first stands and one that comes later is
// refused.
package reap

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

// Config are the reaper's settings. Zero values take the defaults.
type Config struct {
	By    string        // which reaper, in the history of the tasks it ends
	Lease time.Duration // of workers; default 30 s
	Beat  time.Duration // of workers; default 5 s
	Grace time.Duration // a lease is over so long after its end; default 1.5 s
	Every time.Duration // pause between sweeps, up to twice as long while nothing is due; default 1 s
	Batch int           // tasks per read and write; default 500

	Cursors     []string      // readers of the change stream to watch over
	CursorLimit time.Duration // a cursor older than this is an alarm; default 1 h
}

func (c *Config) setDefaults() {
	if c.Batch <= 0 {
		c.Batch = 500
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Lease, task.DefaultLease}, {&c.Beat, 5 * time.Second}, {&c.Grace, 1500 * time.Millisecond}, {&c.Every, time.Second},
		{&c.CursorLimit, time.Hour},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
}

// Reaper sweeps. Every instance watches the database's clock, one of them leads.
type Reaper struct {
	cfg     Config
	store   Store
	watch   *watch
	log     *slog.Logger
	metrics *metrics

	looking sync.Mutex
	first   chan struct{} // closed with the first reading
	mending mending
}

// New makes a reaper and registers its metrics.
func New(cfg Config, store Store, reg prometheus.Registerer, log *slog.Logger) *Reaper {
	cfg.setDefaults()
	r := &Reaper{
		cfg: cfg, store: store, watch: newWatch(cfg.Lease, cfg.Beat), log: log.With("component", "reap"),
		first: make(chan struct{}),
	}
	r.metrics = newMetrics(reg, func() bool { return r.watch.status(time.Now()) != "" })
	return r
}

// Note is what a leader leaves in its lock, see [Reaper.Lead].
func (r *Reaper) Note() string { return r.watch.leave(time.Now()) }

// Watch reads the database's clock every second, or several times a beat if that is shorter, until ctx ends. It is to run on every instance, so that the next leader has
// been watching for long when its turn comes.
func (r *Reaper) Watch(ctx context.Context) error {
	var once sync.Once
	for {
		if err := r.look(ctx); err == nil {
			once.Do(func() { close(r.first) })
		}
		if !pause(ctx, min(time.Second, r.cfg.Beat/4)) {
			return nil
		}
	}
}

// look takes one reading, one at a time. An answer that does not come is what the watch itself notices, so it is not logged here.
func (r *Reaper) look(ctx context.Context) error {
	r.looking.Lock()
	defer r.looking.Unlock()
	asking, cancel := context.WithTimeout(ctx, r.cfg.Beat)
	defer cancel()
	sent := time.Now()
	server, primary, err := r.store.ServerTime(asking)
	if err != nil {
		return err
	}
	v := r.watch.observe(reading{server: server, primary: primary, sent: sent, received: time.Now()})
	if v.paused != "" {
		r.metrics.pauses.WithLabelValues(v.paused).Inc()
		r.log.Warn("nothing is revived for one lease", "because", v.paused, "step", v.step, "lease", r.cfg.Lease)
	}
	if v.step < 0 {
		r.mending.ask(time.Now())
	}
	return nil
}

// Status tells why nothing is revived at the moment; empty: sweeps go on.
func (r *Reaper) Status() string { return r.watch.status(time.Now()) }

// Lead sweeps until ctx ends. It is to be called with the lock held. The lease's note is what the leader before left: with
// it, and what this instance has seen itself, is decided whether sweeps begin at once or after a pause of one lease.
func (r *Reaper) Lead(ctx context.Context, lease task.Lease) error {
	select {
	case <-r.first:
	case <-ctx.Done():
		return nil
	}
	if r.watch.takeOver(lease.Note) {
		r.metrics.pauses.WithLabelValues("new leader").Inc()
		r.log.Info("nothing is revived before a whole lease was watched")
		r.mending.ask(time.Now()) // the clock may have gone back while nobody looked
	}
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { r.sweeps(ctx) })
	loops.Go(func() { r.every(ctx, r.cfg.Beat, "look after workers", r.forgetWorkers) })
	loops.Go(func() { r.every(ctx, 30*time.Second, "look at cursors", r.checkCursors) })
	return nil
}

// every calls do again and again until ctx ends. A failure is logged when it begins and the loop goes on: the database's
// absence is not a fault of the loop.
func (r *Reaper) every(ctx context.Context, d time.Duration, what string, do func(context.Context) error) {
	failing := false
	for pause(ctx, d) {
		failing = r.report(ctx, what, do(ctx), failing)
	}
}

func (r *Reaper) report(ctx context.Context, what string, err error, failing bool) (fails bool) {
	switch {
	case ctx.Err() != nil:
		return failing
	case err != nil && !failing:
		r.log.Warn("cannot "+what+"; trying again", "err", err)
	case err == nil && failing:
		r.log.Info("again able to " + what)
	}
	return err != nil
}

// pause waits for about d; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d*9/10 + rand.N(d/5+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
