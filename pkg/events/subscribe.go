package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Start says which events a subscription without a stored position begins with.
type Start int

const (
	// StartNew begins with the events published after Subscribe was called.
	StartNew Start = iota
	// StartAll begins with the oldest event that AX_EVENT still holds.
	StartAll
)

// SubscribeOptions choose the events and how they are handled. The zero value gives every new event to one handler at a
// time per task, eight tasks side by side, and remembers no position beyond the subscription.
type SubscribeOptions struct {
	// Durable names a position that the server keeps: a later Subscribe with the same name goes on behind the last event
	// that was handled. 1 to 64 of A-Z a-z 0-9 _ -. Empty: the position ends with the subscription. A name is for one
	// subscription at a time: two of them take the consumer from each other again and again, and both get most events.
	Durable string
	// Types and States narrow the events to these task types and states; empty means all.
	Types, States []string
	// Start applies when no position is stored under Durable. Since, when set, takes its place: the events stored at that
	// time (of the NATS server) or later.
	Start Start
	Since time.Time
	// Concurrency is how many events of different tasks are handled side by side; default 8.
	Concurrency int
	// MaxPending is how many events may be received and not yet handled; default 500.
	MaxPending int
	// Remember is for how many tasks the last seq is kept, to drop what comes twice; default 20,000.
	Remember int
	// RetryFirst and RetryMost bound the pause after a handler failed: it doubles from first (default 500 ms) to most
	// (default 1 min).
	RetryFirst, RetryMost time.Duration
	// Log gets failures of the handler, at most one line per try, and of NATS. Nil: nothing is logged.
	Log *slog.Logger
}

const (
	// ackWait is after how long the server delivers again what was not acknowledged; what waits here renews it. It is also
	// how late the last event before a pause may be, if it was on its way when the connection died.
	ackWait       = 10 * time.Second
	pullExpiry    = 5 * time.Second
	pullHeartbeat = 500 * time.Millisecond // a lost pull is noticed after two of these
	apiTimeout    = 5 * time.Second
	idleConsumer  = 5 * time.Minute // an ephemeral consumer outlives its subscriber for so long
)

func (o SubscribeOptions) withDefaults() SubscribeOptions {
	positive := func(v *int, fallback int) {
		if *v <= 0 {
			*v = fallback
		}
	}
	positive(&o.Concurrency, 8)
	positive(&o.MaxPending, 500)
	positive(&o.Remember, 20_000)
	if o.RetryFirst <= 0 {
		o.RetryFirst = 500 * time.Millisecond
	}
	if o.RetryMost <= 0 {
		o.RetryMost = time.Minute
	}
	o.RetryMost = max(o.RetryMost, o.RetryFirst)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// filters returns the subjects to listen to. Names are checked, because they become part of a subject.
func (o SubscribeOptions) filters() ([]string, error) {
	types, err := tokens("type", o.Types)
	if err != nil {
		return nil, err
	}
	states, err := tokens("state", o.States)
	if err != nil {
		return nil, err
	}
	var subjects []string
	for _, t := range types {
		for _, s := range states {
			subjects = append(subjects, SubjectEvent(t, s))
		}
	}
	return subjects, nil
}

func tokens(what string, names []string) ([]string, error) {
	if len(names) == 0 {
		return []string{"*"}, nil
	}
	var once []string // the server refuses overlapping filters
	seen := map[string]bool{}
	for _, name := range names {
		if !token(name) {
			return nil, fmt.Errorf("subscribe: %s %q: give 1 to 64 characters of A-Z a-z 0-9 _ -", what, name)
		}
		if !seen[name] {
			seen[name], once = true, append(once, name)
		}
	}
	return once, nil
}

func token(s string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	return s != "" && len(s) <= 64 && strings.Trim(s, letters) == ""
}

// Subscribe calls handler for each event, in order of seq within a task and without those whose seq is not above the last
// one handled. An event is settled when handler returns nil; an error (or a panic) has it handled again after a pause,
// and the later events of that task wait for it. The handler's context ends with the subscription.
//
// Events come at least once: after a crash, or when more tasks than Remember were met since, one may come again. After
// AX_EVENT itself was lost, ax publishes the last hour anew, and a subscription gets all of it.
//
// When Subscribe returns, every event published from now on will be delivered. The subscription outlives restarts of
// NATS and the deletion of its consumer or stream, and ends with ctx, Stop, or the closing of the connection.
func Subscribe(ctx context.Context, nc *nats.Conn, opts SubscribeOptions, handler func(context.Context, Event) error) (*Subscription, error) {
	opts = opts.withDefaults()
	filters, err := opts.filters()
	if err != nil {
		return nil, err
	}
	if opts.Durable != "" && !token(opts.Durable) {
		return nil, fmt.Errorf("subscribe: durable %q: give 1 to 64 characters of A-Z a-z 0-9 _ -", opts.Durable)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	s := &Subscription{
		js: js, opts: opts, handler: handler, filters: filters,
		open: make(map[uint64]*delivery), seen: newSeen(opts.Remember), done: make(chan struct{}),
	}
	consumer, err := s.attach(ctx)
	if err != nil {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, fmt.Errorf("subscribe: stream %s does not exist: start the services of ax first, or check that this is the right NATS: %w", StreamEvent, err)
		}
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.order = newInOrder(ctx, opts.Concurrency, func(tries int) time.Duration {
		return backoff(tries, opts.RetryFirst, opts.RetryMost)
	}, s.handle)
	go s.run(ctx, consumer)
	return s, nil
}
