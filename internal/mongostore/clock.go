package mongostore

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	refreshEvery    = 10 * time.Second
	refreshRetry    = time.Second            // after a refresh that failed
	refreshTimeout  = 3 * time.Second        // of one question
	maxClockBound   = 250 * time.Millisecond // above it the time counts as unknown
	maxClockAge     = 30 * time.Second       // without an answer for so long, the primary may be another one by now
	clockStep       = time.Second            // a move of the estimate that is worth a line in the log
	driftPerMillion = 200                    // how far apart two good clocks run, doubled
)

// greeting is one answer to hello: the server's time, and when it was so by the own monotonic clock.
type greeting struct {
	server     time.Time     // truncated to milliseconds by the server
	mono       time.Duration // middle of the round trip, since the clock's start
	bound      time.Duration // half the round trip, and the millisecond that was cut off
	primary    string        // host:port of the primary, or of the server itself
	replicated bool          // replica set or sharded: has change streams and transactions
}

// clock estimates the server's time from an anchor on the monotonic clock. It never looks at the wall clock: started carries a
// monotonic reading, and only differences to it are used.
type clock struct {
	ask          func(context.Context) (greeting, error)
	log          *slog.Logger
	started      time.Time
	every, retry time.Duration // between two questions

	mu       sync.Mutex
	known    bool
	anchor   greeting
	answered time.Duration // when the server last answered

	cancel context.CancelFunc
	done   chan struct{}
}

func newClock(ask func(context.Context) (greeting, error), log *slog.Logger) *clock {
	return &clock{ask: ask, log: log, started: time.Now(), every: refreshEvery, retry: refreshRetry}
}

func (c *clock) mono() time.Duration { return time.Since(c.started) }

// observe takes over an answer, unless the anchor at hand agrees with it and is more exact.
func (c *clock) observe(g greeting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = g.mono
	if c.known {
		expected, bound := c.at(g.mono)
		moved := g.server.Sub(expected)
		agrees := moved.Abs() <= bound+g.bound // an answer that took long may differ by as much and prove nothing
		if agrees && bound <= g.bound {
			return
		}
		if !agrees && moved.Abs() > clockStep {
			c.log.Warn("the database's clock moved against the monotonic clock", "by", moved)
		}
	}
	c.anchor, c.known = g, true
}

// at extrapolates the anchor; the caller holds mu.
func (c *clock) at(mono time.Duration) (now time.Time, bound time.Duration) {
	elapsed := mono - c.anchor.mono
	return c.anchor.server.Add(elapsed), c.anchor.bound + elapsed.Abs()*driftPerMillion/1_000_000
}

func (c *clock) now() (time.Time, time.Duration, error) {
	mono := c.mono()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return time.Time{}, 0, fmt.Errorf("%w: it has not answered yet", task.ErrClock)
	}
	now, bound := c.at(mono)
	if age := mono - c.answered; age > maxClockAge {
		return time.Time{}, 0, fmt.Errorf("%w: no answer for %s", task.ErrClock, age.Round(time.Second))
	}
	if bound > maxClockBound {
		return time.Time{}, 0, fmt.Errorf("%w: the error may be %s", task.ErrClock, bound.Round(time.Millisecond))
	}
	return now, bound, nil
}

func (c *clock) start() {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.done = cancel, make(chan struct{})
	go func() {
		defer close(c.done)
		c.refresh(ctx)
	}()
}

// stop ends the refresh and waits for it.
func (c *clock) stop() {
	c.cancel()
	<-c.done
}

func (c *clock) refresh(ctx context.Context) {
	c.mu.Lock()
	wait := c.pause(c.anchor)
	c.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait - rand.N(wait/5)):
		}
		asked, cancel := context.WithTimeout(ctx, refreshTimeout)
		g, err := c.ask(asked)
		cancel()
		if err != nil {
			wait = c.retry
			continue
		}
		c.observe(g)
		wait = c.pause(g)
	}
}

// pause is how long to wait after an answer: one that is too vague to go by is asked for again soon.
func (c *clock) pause(g greeting) time.Duration {
	if g.bound > maxClockBound {
		return c.retry
	}
	return c.every
}

// Now estimates the server's time. The true time is at most bound away. The error is [task.ErrClock] when the estimate is not
// good enough to write or filter by. It costs no round trip.
func (s *Store) Now() (now time.Time, bound time.Duration, err error) { return s.clock.now() }

// ServerTime asks the primary for its time now. primary names the server that answered, so that a caller can see a failover.
func (s *Store) ServerTime(ctx context.Context) (now time.Time, primary string, err error) {
	g, err := s.hello(ctx)
	if err != nil {
		return time.Time{}, "", fmt.Errorf("ask for the server's time: %w", err)
	}
	s.clock.observe(g)
	return g.server.Add(s.clock.mono() - g.mono), g.primary, nil
}

// hello asks a server that may have to be found first, which can take seconds after an outage and says nothing about the time. So
// an answer that took that long is asked for once more.
func (s *Store) hello(ctx context.Context) (greeting, error) {
	g, err := s.helloOnce(ctx)
	if err == nil && g.bound > maxClockBound {
		g, err = s.helloOnce(ctx)
	}
	return g, err
}

func (s *Store) helloOnce(ctx context.Context) (greeting, error) {
	var reply struct {
		LocalTime         time.Time `bson:"localTime"`
		SetName           string    `bson:"setName"`
		Msg               string    `bson:"msg"`
		Me                string    `bson:"me"`
		Primary           string    `bson:"primary"`
		IsWritablePrimary bool      `bson:"isWritablePrimary"`
	}
	sent := s.clock.mono()
	if err := s.hotDB.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&reply); err != nil {
		return greeting{}, fmt.Errorf("hello: %w", err)
	}
	half := (s.clock.mono() - sent) / 2
	if !reply.IsWritablePrimary {
		return greeting{}, fmt.Errorf("hello: %s is not the primary", reply.Me)
	}
	if reply.LocalTime.IsZero() {
		return greeting{}, fmt.Errorf("hello: the answer has no time")
	}
	g := greeting{server: reply.LocalTime.UTC(), mono: sent + half, bound: half + time.Millisecond,
		primary: reply.Primary, replicated: reply.SetName != "" || reply.Msg == "isdbgrid"}
	if g.primary == "" {
		g.primary = reply.Me
	}
	return g, nil
}
