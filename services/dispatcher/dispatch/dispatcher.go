package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	slotsEvery = 10 * time.Second
	tidyEvery  = time.Minute
)

// Options are what a dispatcher is made of.
type Options struct {
	Store    Store
	Bus      Bus
	Log      *slog.Logger
	Registry prometheus.Registerer
	Sweep    time.Duration // between two looks at what has fallen due; default 2 s
	Horizon  time.Duration // how far ahead tasks get a timer; default 5 s, at least twice Sweep
	Walk     time.Duration // between two walks through all that is due; default 1 min
}

// Dispatcher turns pending tasks into signals while it leads.
type Dispatcher struct {
	opt     Options
	metrics *Metrics
	board   atomic.Pointer[board] // of the current term; nil while another process leads
}

// New checks the options and makes a dispatcher. It does nothing until it is told to lead.
func New(opt Options) (*Dispatcher, error) {
	if opt.Store == nil || opt.Bus == nil || opt.Log == nil || opt.Registry == nil {
		return nil, errors.New("dispatcher: store, bus, log and registry are needed")
	}
	if opt.Sweep == 0 {
		opt.Sweep = 2 * time.Second
	}
	if opt.Horizon == 0 {
		opt.Horizon = max(5*time.Second, 2*opt.Sweep)
	}
	if opt.Walk == 0 {
		opt.Walk = time.Minute
	}
	if opt.Sweep < 0 || opt.Walk < 0 || opt.Horizon < 2*opt.Sweep {
		return nil, fmt.Errorf("dispatcher: horizon %v must be at least twice the sweep %v, or tasks would start late", opt.Horizon, opt.Sweep)
	}
	opt.Log = opt.Log.With("component", "dispatch")
	d := &Dispatcher{opt: opt}
	d.metrics = newMetrics(opt.Registry, d.counts)
	return d, nil
}

// Lead dispatches for one term: until ctx ends (nil), or a later leader's epoch was met ([task.ErrNotLeader]). A leader
// that was paused and goes on for a moment does no harm: signals are hints, and its cursor is refused by the epoch.
func (d *Dispatcher) Lead(ctx context.Context, lease task.Lease) error {
	until := ctx
	log, store := d.opt.Log.With("epoch", lease.Epoch), d.opt.Store
	out := newOutbox(d.opt.Bus, lease.Epoch)
	b := newBoard(store, d.opt.Horizon, d.metrics, out.add)
	out.done = b.published
	d.board.Store(b)
	defer d.board.Store(nil)
	defer d.metrics.degraded.Set(0)

	how := &mode{metrics: d.metrics, log: log}
	rescan := make(chan struct{}, 1)
	sweep := &sweeper{board: b, store: store, mode: how, metrics: d.metrics, log: log, every: d.opt.Sweep, horizon: d.opt.Horizon, behind: d.opt.Walk}
	walk := &walker{board: b, store: store, metrics: d.metrics, log: log, every: d.opt.Walk, rescan: rescan, grace: sweep.grace}
	review := &reviewer{board: b, bus: d.opt.Bus, mode: how, log: log, every: d.opt.Sweep / 2}
	tail := &tailer{board: b, outbox: out, store: store, clock: store, epoch: lease.Epoch, metrics: d.metrics, log: log, mode: how, rescan: rescan}
	save := &saver{outbox: out, store: store, epoch: lease.Epoch, log: log}
	refill := &refiller{board: b, store: store, metrics: d.metrics, log: log}
	poke(rescan) // also where no stream can be opened

	group, ctx := errgroup.WithContext(ctx)
	for _, loop := range []func(context.Context) error{out.run, b.ring, b.nudges, sweep.run, walk.run, review.run, tail.run, save.run, d.attend} {
		group.Go(func() error { return loop(ctx) })
	}
	for range refillers {
		group.Go(func() error { return refill.run(ctx) })
	}
	if err := group.Wait(); err != nil && until.Err() == nil {
		return err
	}
	return nil
}

// Ready says why tasks cannot be signalled as they should: the database's time is not known, or signals do not reach the bus.
func (d *Dispatcher) Ready(context.Context) error {
	if _, _, err := d.opt.Store.Now(); err != nil {
		return err
	}
	if b := d.board.Load(); b != nil {
		if err := b.ready(); err != nil {
			return fmt.Errorf("publish signals: %w", err)
		}
	}
	return nil
}

// attend keeps the board's picture of the workers fresh and its memory small.
func (d *Dispatcher) attend(ctx context.Context) error {
	b := d.board.Load()
	tidied := time.Now()
	failing := false
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, slotsEvery/2)
		slots, err := d.opt.Store.Slots(asking)
		cancel()
		if err == nil {
			b.slots(slots)
		} else if !failing && ctx.Err() == nil {
			d.opt.Log.Warn("cannot look up the workers", "err", err)
		}
		failing = err != nil
		if time.Since(tidied) > tidyEvery {
			b.tidy()
			tidied = time.Now()
		}
		sleep(ctx, jittered(slotsEvery))
	}
	return nil
}

func (d *Dispatcher) counts() (flying, lanes, backlog, timers int) {
	if b := d.board.Load(); b != nil {
		return b.counts()
	}
	return 0, 0, 0, 0
}
