package worker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// engine is one run of a worker: its loops, and what they share.
//
// Signals and finds go through the intake to the claimer, what it wins becomes executions, what their handlers return goes
// through the finisher to the database; beats and the fence watch over the leases meanwhile.
type engine struct {
	opts    Options
	store   store
	connect func(ctx context.Context) (bus, error) // called until it succeeds; nil: no NATS
	log     *slog.Logger
	quiet   *quietLog
	metrics *metrics

	kinds    map[string]*kind
	ordered  []*kind
	intake   *intake
	claimer  *claimer
	runs     *runs
	finisher *finisher
	beats    *beats
	searcher *searcher

	bus      atomic.Pointer[busHolder] // nil until NATS was reached
	stopping atomic.Bool
}

type busHolder struct{ bus }

func newEngine(o Options, kinds []*kind, s store, connect func(ctx context.Context) (bus, error), m *metrics) *engine {
	log := o.Log.With("component", "worker", "worker_id", o.ID)
	e := &engine{opts: o, store: s, connect: connect, log: log, quiet: newQuietLog(log), metrics: m,
		kinds: make(map[string]*kind), ordered: kinds, runs: newRuns(o.Lease)}
	names := make([]string, len(kinds))
	for i, k := range kinds {
		e.kinds[k.name] = k
		names[i] = k.name
	}
	e.finisher = newFinisher(s, e.runs, o.Lease, e.quiet, m, e.lost, e.ring)
	e.intake = &intake{clock: s.Now, slots: o.Slots, claims: newBell(), fetches: newBell(), full: e.finisher.full,
		log: e.quiet, metrics: m, held: make(map[*signal]struct{})}
	e.claimer = &claimer{store: s, intake: e.intake, worker: o.ID, lease: o.Lease, log: e.quiet, metrics: m,
		fit: e.fit, start: e.start, give: e.give, handBack: e.handBack}
	host, _ := os.Hostname() // without one the entry has none
	e.beats = &beats{store: s, runs: e.runs, claimer: e.claimer, lease: o.Lease, every: o.Beat, log: e.quiet, metrics: m, lost: e.lost,
		info: task.WorkerInfo{ID: o.ID, Host: host, PID: os.Getpid(), Channel: o.Channel, Types: names, Slots: o.Slots, Version: o.Version}}
	e.searcher = &searcher{store: s, intake: e.intake, kinds: kinds, channel: o.Channel, log: e.quiet, metrics: m}
	return e
}

// ring has the claimer and the fetch loop look again.
func (e *engine) ring() {
	e.intake.claims.ring()
	e.intake.fetches.ring()
}

// run works until ctx ends, then stops in order.
func (e *engine) run(ctx context.Context) error {
	fetching, stopFetching := context.WithCancel(context.WithoutCancel(ctx))
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFetching()
	defer stopWorking()

	var fetchers, workers sync.WaitGroup
	workers.Go(func() { e.finisher.run(working) })
	workers.Go(func() { e.beats.run(working) })
	workers.Go(func() { e.fence(working) })
	workers.Go(func() { e.gauges(working) })
	fetchers.Go(func() { e.claimer.run(fetching, working) })
	fetchers.Go(func() { e.searcher.run(fetching) })
	if e.connect != nil {
		fetchers.Go(func() { e.listen(fetching) })
	}
	e.log.Info("worker started", "types", e.beats.info.Types, "slots", e.opts.Slots, "channel", e.opts.Channel)

	<-ctx.Done()
	return e.stop(stopFetching, stopWorking, &fetchers, &workers)
}

// listen connects to NATS, however long that takes, and receives signals until ctx ends.
func (e *engine) listen(ctx context.Context) {
	var b bus
	for failures := 0; b == nil; {
		var err error
		if b, err = e.connect(ctx); err != nil {
			b = nil
			failures++
			e.quiet.warn("NATS cannot be reached, working without it", "err", err)
			if !pause(ctx, backoff(failures, fetchRetryFirst, fetchRetryMost)) {
				return
			}
		}
	}
	e.bus.Store(&busHolder{b})
	stop, err := b.SubscribeCancel(func(c events.Cancel) { e.runs.cancel(c.ID, c.ExecutionID) })
	if err != nil {
		e.log.Warn("cancellations are heard of with the heartbeats only", "err", err)
	} else {
		defer stop()
	}
	newPuller(e.intake, e.ordered, e.opts.Channel, b, e.quiet, e.metrics).run(ctx)
}

// give passes on signals that have waited too long for a slot.
func (e *engine) give(ctx context.Context, now time.Time) {
	whole, rests := e.intake.unstartable(now, false)
	b := e.bus.Load()
	if len(whole)+len(rests) == 0 || b == nil {
		return
	}
	e.intake.giveBack(ctx, b, whole, nil)
	if len(rests) > 0 {
		e.claimer.claims.Go(func() { e.intake.giveBack(ctx, b, nil, rests) })
	}
}

// gauges keeps what is measured rather than counted up to date.
func (e *engine) gauges(ctx context.Context) {
	for {
		e.observe()
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// health is nil while the worker can do its work.
func (e *engine) health() error {
	if n := e.runs.abandoned(); n >= e.opts.Slots {
		return fmt.Errorf("all %d slots are held by handlers that ignore the end of their context", e.opts.Slots)
	}
	if _, _, err := e.store.Now(); err != nil {
		return err
	}
	return nil
}
