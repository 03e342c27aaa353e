package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Msg is a message to publish.
type Msg = events.Msg

// PublisherOptions bound a publisher.
type PublisherOptions struct {
	// Name labels the breaker in logs and metrics; default "publish".
	Name string
	// InFlight is how many messages may be sent and not acknowledged, over all callers; default 1,000.
	InFlight int
	// AckTimeout is how long one try waits for its acknowledgement; default 5 s. A broken connection ends it at once, so it
	// only matters when the server is there and silent.
	AckTimeout time.Duration
	// Deadline bounds a Publish whose context has no deadline, all tries together; default 10 s.
	Deadline time.Duration
	// Trip is after how many failed calls in a row the breaker opens; default 5. Cool is how long it stays open; default 2 s.
	Trip uint32
	Cool time.Duration
}

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second
)

// Publisher publishes to streams and waits for the acknowledgements. It is safe for concurrent use.
type Publisher struct {
	bus     *Bus
	sender  *sender
	opts    PublisherOptions
	breaker *gobreaker.CircuitBreaker[struct{}]
	closed  atomic.Bool
}

// Publisher makes a publisher. Close it before the bus.
func (b *Bus) Publisher(opts PublisherOptions) (*Publisher, error) {
	opts.Name = cmp.Or(opts.Name, "publish")
	opts.InFlight = cmp.Or(opts.InFlight, 1000)
	opts.AckTimeout = cmp.Or(opts.AckTimeout, 5*time.Second)
	opts.Deadline = cmp.Or(opts.Deadline, 10*time.Second)
	opts.Trip = cmp.Or(opts.Trip, 5)
	opts.Cool = cmp.Or(opts.Cool, 2*time.Second)
	sender, err := b.newSender(opts.InFlight, opts.AckTimeout)
	if err != nil {
		return nil, err
	}
	return &Publisher{bus: b, sender: sender, opts: opts, breaker: b.newBreaker(opts.Name, opts.Trip, opts.Cool)}, nil
}

// newBreaker opens after trip failures in a row, and lets one call try after cool. A caller that gave up says nothing
// about NATS, so it does not count.
func (b *Bus) newBreaker(name string, trip uint32, cool time.Duration) *gobreaker.CircuitBreaker[struct{}] {
	state := b.metrics.breaker.WithLabelValues(name)
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: name, Timeout: cool,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= trip },
		IsExcluded:  func(err error) bool { return errors.Is(err, context.Canceled) },
		OnStateChange: func(name string, from, to gobreaker.State) {
			state.Set(map[gobreaker.State]float64{gobreaker.StateHalfOpen: 1, gobreaker.StateOpen: 2}[to])
			b.log.Info("breaker changed", slog.String("breaker", name), slog.String("from", from.String()), slog.String("to", to.String()))
		},
	})
}

// Close gives up what is not acknowledged: calls of Publish, under way or to come, end with [ErrClosed].
func (p *Publisher) Close() {
	p.closed.Store(true)
	p.sender.close()
}

// Publish sends the messages and returns one result for each, in their order; nil means stored. A message without an
// answer is sent again with the same ID until ctx (or the default deadline) ends; its error then does not tell whether it
// was stored. [ErrFull] and [ErrTooLarge] are final answers. [ErrOpen] means that publishing failed for a while and nothing
// was tried. The order of storing is not kept.
func (p *Publisher) Publish(ctx context.Context, msgs []Msg) []error {
	if len(msgs) == 0 {
		return nil
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.opts.Deadline)
		defer cancel()
	}
	var errs []error
	_, err := p.breaker.Execute(func() (struct{}, error) {
		var unanswered error
		errs, unanswered = p.publish(ctx, msgs)
		return struct{}{}, unanswered
	})
	if errs == nil { // not tried
		errs = make([]error, len(msgs))
		for i := range errs {
			errs[i] = fmt.Errorf("%w: %w", ErrOpen, err)
		}
	}
	for _, err := range errs {
		switch {
		case err == nil: // counted when it was answered
		case errors.Is(err, ErrFull):
			p.bus.metrics.published.WithLabelValues("full").Inc()
		case errors.Is(err, ErrOpen):
			p.bus.metrics.published.WithLabelValues("open").Inc()
		case errors.Is(err, ErrTooLarge):
			p.bus.metrics.published.WithLabelValues("refused").Inc()
		default:
			p.bus.metrics.published.WithLabelValues("failed").Inc()
		}
	}
	return errs
}

// publish tries until every message is answered or ctx ends. The second error is that of a message without an answer.
func (p *Publisher) publish(ctx context.Context, msgs []Msg) ([]error, error) {
	errs := make([]error, len(msgs))
	open := make([]int, len(msgs)) // indexes of messages without an answer
	for i := range open {
		open[i] = i
	}
	for try := 1; ; try++ {
		if p.closed.Load() {
			for _, i := range open {
				errs[i] = fmt.Errorf("publish %s: %w", msgs[i].Subject, ErrClosed)
			}
			return errs, nil
		}
		answers := p.round(ctx, msgs, open)
		rest := open[:0]
		for n, i := range open {
			result, err := classify(answers[n])
			if err != nil {
				errs[i] = fmt.Errorf("publish %s: %w", msgs[i].Subject, err)
			} else {
				errs[i] = nil
			}
			if result == unknown {
				rest = append(rest, i)
			}
		}
		if open = rest; len(open) == 0 {
			if errors.Is(ctx.Err(), context.Canceled) {
				return errs, ctx.Err() // the caller gave up: no verdict on NATS
			}
			return errs, nil
		}
		p.bus.noteMissing(errs[open[0]])
		if !pause(ctx, try, retryFirst, retryMost) {
			return errs, cmp.Or(context.Cause(ctx), errs[open[0]])
		}
		p.bus.metrics.retries.Add(float64(len(open)))
	}
}

// round sends the messages with these indexes once and waits for the answers, or for the end of ctx.
func (p *Publisher) round(ctx context.Context, msgs []Msg, indexes []int) []error {
	var mu sync.Mutex
	answers := make([]error, len(indexes))
	for n := range answers {
		answers[n] = errNoAnswer
	}
	left := len(indexes)
	all := make(chan struct{})
	for n, i := range indexes {
		p.sender.send(ctx, msgs[i], func(err error) {
			mu.Lock()
			defer mu.Unlock()
			answers[n] = err
			if left--; left == 0 {
				close(all)
			}
		})
	}
	select {
	case <-all:
		return answers
	case <-ctx.Done():
		mu.Lock()
		defer mu.Unlock()
		return append([]error(nil), answers...) // late answers go to the original
	}
}

var errNoAnswer = errors.New("no acknowledgement within the deadline; whether it is stored is not known")
