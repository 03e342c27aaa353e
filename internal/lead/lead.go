// Package lead runs work on one process at a time: the holder of a lock in the database.
//
// The lock decides nothing about safety by itself. A leader that is paused, cut off or slow may go on believing in its
// lock for a moment, so whatever it writes must be harmless when written twice, or carry the epoch, which the store
// compares. What this package adds is that such a moment is short: the work's context ends, by the process's own monotonic
// clock, before the lock does.
package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

// DefaultTTL is how long a lock outlives its holder's last renewal.
const DefaultTTL = 10 * time.Second

// Lock is the store's side. Its clock is the database's.
type Lock interface {
	// Acquire takes the lock when it is free, over or already the owner's. A lock held by another is an answer, not an error.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (task.Lease, error)
	// Renew extends a lock that is held and replaces its note; [task.ErrNotLeader] when it has passed to another.
	Renew(ctx context.Context, held task.Lease, ttl time.Duration, note string) (task.Lease, error)
	// Release gives the lock up if it is still held under that epoch, and keeps its note.
	Release(ctx context.Context, held task.Lease) error
}

// Options say which lock and how.
type Options struct {
	Name  string        // of the lock
	Owner string        // of this process, unlike any other's
	TTL   time.Duration // 0: [DefaultTTL]
	Log   *slog.Logger
	// Note is asked at each renewal for what a successor should know; nil: nothing.
	Note func() string
	// Registry gets the gauge [Metric]; nil: none does.
	Registry prometheus.Registerer
}

// Identity is a name for this process that no other one has, now or later: host, process id and a random part. It holds only
// letters, digits and hyphens, so that it fits into the history of a task.
func Identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, host)
	if len(host) > 40 {
		host = host[:40]
	}
	return fmt.Sprintf("%s-%d-%06x", host, os.Getpid(), rand.Uint32N(1<<24))
}

// Metric is the gauge that is 1 while a process leads.
const Metric = "ax_lead_leading_bool"

// Run waits for the lock, runs work while it is held, and starts again when work ends or the lock is lost. It returns nil
// once ctx has ended and work has returned. Work gets the lease as it was acquired, with the note of the leader before; its
// context ends with cause [task.ErrNotLeader] when the lock cannot be kept. An error of work gives the lock up, so that
// another process may do better.
func Run(ctx context.Context, lock Lock, opt Options, work func(ctx context.Context, lease task.Lease) error) error {
	if opt.TTL == 0 {
		opt.TTL = DefaultTTL
	}
	log := opt.Log.With("component", "lead", "lock", opt.Name)
	leading := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: Metric, Help: "1 while this process holds the lock and does its work.", ConstLabels: prometheus.Labels{"lock": opt.Name},
	})
	if opt.Registry != nil {
		opt.Registry.MustRegister(leading)
	}
	failing := false
	for ctx.Err() == nil {
		sent := time.Now()
		lease, err := acquire(ctx, lock, opt)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing: // said once: a database that is away is away for every loop of the process
			log.Warn("cannot ask for the lock", "err", err)
			failing = true
		case err == nil:
			failing = false
		}
		if err == nil && lease.Held {
			log.Info("leading", "epoch", lease.Epoch)
			leading.Set(1)
			err = term(ctx, lock, opt, lease, sent, work)
			leading.Set(0)
			if err != nil && ctx.Err() == nil {
				log.Warn("leading ended", "epoch", lease.Epoch, "err", err)
			}
		}
		pause(ctx, opt.TTL/4)
	}
	return nil
}

func acquire(ctx context.Context, lock Lock, opt Options) (task.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, opt.TTL/2)
	defer cancel()
	return lock.Acquire(ctx, opt.Name, opt.Owner, opt.TTL)
}

// term runs work until it ends or the lock is lost. sent is when the acquiring request left: the lock runs at least ttl
// from then on, whatever the answer took.
func term(ctx context.Context, lock Lock, opt Options, lease task.Lease, sent time.Time,
	work func(context.Context, task.Lease) error,
) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, 1)
	go func() { ended <- work(working, lease) }()

	fence := sent.Add(opt.TTL * 4 / 5)
	for {
		timer := time.NewTimer(min(jittered(opt.TTL/4), time.Until(fence)))
		select {
		case err := <-ended:
			timer.Stop()
			return errors.Join(ignoreCancel(err), release(ctx, lock, opt, lease))
		case <-ctx.Done():
			timer.Stop()
			err := <-ended
			return errors.Join(ignoreCancel(err), release(ctx, lock, opt, lease))
		case <-timer.C:
		}
		asked := time.Now()
		err := renew(ctx, lock, opt, lease, fence)
		switch {
		case err == nil:
			fence = asked.Add(opt.TTL * 4 / 5)
		case errors.Is(err, task.ErrNotLeader), !time.Now().Before(fence):
			stop(task.ErrNotLeader)
			return errors.Join(fmt.Errorf("keep the lock: %w", err), ignoreCancel(<-ended))
		}
	}
}

// renew asks once, and not beyond the fence: the work must have been told to stop by then.
func renew(ctx context.Context, lock Lock, opt Options, lease task.Lease, fence time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, earlier(fence, time.Now().Add(opt.TTL/4)))
	defer cancel()
	note := ""
	if opt.Note != nil {
		note = opt.Note()
	}
	_, err := lock.Renew(ctx, lease, opt.TTL, note)
	return err
}

// release hands the lock on at once instead of letting it run out, with a last note. It works on a context of its own: it is
// called when the process stops.
func release(ctx context.Context, lock Lock, opt Options, lease task.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if opt.Note != nil {
		if _, err := lock.Renew(ctx, lease, opt.TTL, opt.Note()); err != nil {
			return ignoreCancel(fmt.Errorf("leave a note: %w", err))
		}
	}
	if err := lock.Release(ctx, lease); err != nil && !errors.Is(err, task.ErrNotLeader) {
		return fmt.Errorf("release the lock: %w", err)
	}
	return nil
}

func ignoreCancel(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, task.ErrNotLeader) {
		return nil
	}
	return err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// jittered spreads d over 3/4 to 5/4 of it, so that processes started together do not ask together.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)+1))
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(jittered(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
