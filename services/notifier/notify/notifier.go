package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

// CursorName is the name under which the notifier's place in the change stream is stored.
const CursorName = "notifier"

// Config are the notifier's settings. The zero value takes the defaults.
type Config struct {
	SaveEvery  time.Duration // how often the cursor is stored while events flow; default 1 s
	IdleEvery  time.Duration // and while none do; default 30 s
	CheckEvery time.Duration // how often AX_EVENT is looked at; default 5 s
	SweepEvery time.Duration // pause between sweeps where there are no change streams; default 5 s
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.SaveEvery, time.Second}, {&c.IdleEvery, 30 * time.Second}, {&c.CheckEvery, 5 * time.Second}, {&c.SweepEvery, 5 * time.Second}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
}

const (
	// slack is added on the old side of everything that is rebuilt by time: a write is seen up to so long after the time it
	// carries, a transaction's longest life.
	slack = time.Minute
	// newStreamBack is how far back events are made again for an AX_EVENT that was lost.
	newStreamBack = time.Hour
)

// Notifier publishes what happens to tasks. One instance leads at a time, see [Notifier.Lead].
type Notifier struct {
	cfg     Config
	store   Store
	bus     Bus
	log     *slog.Logger
	metrics *metrics

	mu    sync.Mutex
	known string // the creation of AX_EVENT that the stored cursor stands for
}

// New makes a notifier and registers its metrics.
func New(cfg Config, store Store, bus Bus, reg prometheus.Registerer, log *slog.Logger) *Notifier {
	cfg.setDefaults()
	return &Notifier{cfg: cfg, store: store, bus: bus, log: log.With("component", "notify"), metrics: newMetrics(reg)}
}

// Note is what a leader leaves in its lock: the creation of AX_EVENT for which its cursor holds. A successor that finds
// another one publishes the last hour again.
func (n *Notifier) Note() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known
}

func (n *Notifier) setKnown(creation string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = creation
}

// errAgain ends one reading of the change stream because a rebuild is needed.
var errAgain = errors.New("events must be made again")

// Lead publishes until ctx ends or the database fails. It is to be called with the lock held.
func (n *Notifier) Lead(ctx context.Context, lease task.Lease) error {
	n.setKnown(lease.Note)
	for {
		err := n.follow(ctx, lease.Epoch)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errAgain), errors.Is(err, task.ErrHistoryLost):
		default:
			return err
		}
	}
}

// follow opens the change stream at the stored cursor, rebuilds if it must, and publishes what comes.
func (n *Notifier) follow(ctx context.Context, epoch int64) error {
	place, err := n.start(ctx)
	if err != nil {
		return err
	}
	stream, err := n.store.OpenStream(ctx, place.token)
	switch {
	case errors.Is(err, task.ErrNoChangeStream):
		return n.sweep(ctx, epoch, place)
	case errors.Is(err, task.ErrHistoryLost):
		n.log.Warn("the change stream no longer reaches back to the stored place; events are made again from history", "at", place.at)
		place.rebuild = "history lost"
		stream, err = n.store.OpenStream(ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("open the change stream: %w", err)
	}
	defer stream.Close()
	n.metrics.degraded.Set(0)

	if place.rebuild != "" {
		// The stream is open already, so what changes during the rebuild comes afterwards and nothing falls between.
		if err := n.rebuildOnce(ctx, epoch, place, stream); err != nil {
			return err
		}
	}
	return n.tail(ctx, epoch, stream)
}

// place is where publishing goes on.
type place struct {
	token    []byte
	at       time.Time // changes written before have been published; zero: not known
	creation string    // of AX_EVENT
	rebuild  string    // why events must be made again first; empty: they need not
	began    time.Time // the database's time, never too late, before any stream was opened
}

// start finds out where to go on: it needs the database and NATS.
func (n *Notifier) start(ctx context.Context) (place, error) {
	var p place
	var err error
	if p.token, p.at, err = n.store.LoadCursor(ctx, CursorName); err != nil {
		return p, fmt.Errorf("load cursor: %w", err)
	}
	if p.creation, err = n.eventStream(ctx); err != nil {
		return p, err
	}
	now, bound, err := n.store.Now()
	if err != nil {
		return p, fmt.Errorf("start: %w", err)
	}
	p.began = now.Add(-bound)
	switch {
	case p.creation != n.Note():
		p.rebuild = "event stream is new"
		p.token = nil
	case p.token == nil:
		p.rebuild = "no place stored"
	}
	return p, nil
}

// since is the time from which finished tasks are published again.
func (p place) since() time.Time {
	at := p.at
	if at.After(p.began) { // stored before the clock went back
		at = p.began
	}
	from := at.Add(-slack)
	if back := p.began.Add(-newStreamBack); p.at.IsZero() || p.rebuild == "event stream is new" && back.Before(from) {
		from = back
	}
	return from
}

// eventStream asks for the creation of AX_EVENT until NATS answers or ctx ends.
func (n *Notifier) eventStream(ctx context.Context) (string, error) {
	for failed := false; ; failed = true {
		creation, err := n.bus.EventStream(ctx)
		if err == nil {
			return creation, nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if !failed {
			n.log.Warn("waiting for the event stream", "err", err)
		}
		if !pause(ctx, time.Second) {
			return "", ctx.Err()
		}
	}
}

func (n *Notifier) save(ctx context.Context, epoch int64, token []byte, at time.Time) error {
	if err := n.store.SaveCursor(ctx, CursorName, token, at, epoch); err != nil {
		return fmt.Errorf("save cursor: %w", err)
	}
	return nil
}

// pause waits for about d; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d*3/4 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
