package natsbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Message is a message received from a stream.
type Message = events.Message

const (
	// A pull ends after pullWait at the latest, so that a source can stop without cutting one off: what is on its way then
	// would be missing until the server delivers it again.
	pullWait = time.Second
	// With a heartbeat a pull is longer, and cut off by a stop; a lost one is noticed after two beats.
	pullBeats    = 10
	rebuildFirst = 20 * time.Millisecond
	rebuildMost  = 2 * time.Second
)

// source pulls from one durable consumer, and makes it (and its stream) again when it is gone.
type source struct {
	bus    *Bus
	stream string
	cfg    jetstream.ConsumerConfig
	beat   time.Duration // heartbeat of a long pull; 0: short pulls
	strays sync.WaitGroup

	mu       sync.Mutex
	consumer jetstream.Consumer // nil: look it up before the next pull
	from     time.Time          // where a consumer begins that has to be made again; zero: as cfg says
}

// ensure returns the consumer, made if need be.
func (s *source) ensure(ctx context.Context) (jetstream.Consumer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.consumer != nil {
		return s.consumer, nil
	}
	ctx, cancel := s.bus.whileConnected(ctx)
	defer cancel()
	consumer, err := s.attach(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err = s.bus.recreateStreams(ctx); err == nil {
			consumer, err = s.attach(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s of %s: %w", s.cfg.Durable, s.stream, cause(ctx, err))
	}
	s.consumer = consumer
	return consumer, nil
}

// attach finds the consumer and brings its settings up to date, or makes it.
func (s *source) attach(ctx context.Context) (jetstream.Consumer, error) {
	cfg := s.cfg
	existing, err := s.bus.js.Consumer(ctx, s.stream, cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if !s.from.IsZero() {
			cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &s.from
		}
		return s.bus.js.CreateConsumer(ctx, s.stream, cfg)
	}
	if err != nil {
		return nil, err
	}
	have := existing.CachedInfo().Config
	cfg.DeliverPolicy, cfg.OptStartSeq, cfg.OptStartTime = have.DeliverPolicy, have.OptStartSeq, have.OptStartTime
	updated, err := s.bus.js.UpdateConsumer(ctx, s.stream, cfg)
	if _, refused := errors.AsType[*jetstream.APIError](err); refused && !errors.Is(err, jetstream.ErrConsumerDoesNotExist) {
		// Some settings cannot be changed. Those of an older version of ax serve as well.
		s.bus.log.Warn("consumer keeps its old settings", slog.String("stream", s.stream), slog.String("consumer", cfg.Durable), slog.Any("err", err))
		return existing, nil
	}
	return updated, err
}

// beginAgainAt sets where a consumer begins that was deleted under us.
func (s *source) beginAgainAt(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.After(s.from) {
		s.from = at
	}
}

// forget has the consumer looked up before the next pull.
func (s *source) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumer = nil
	s.bus.metrics.rebuilds.WithLabelValues(s.stream).Inc()
}

// run keeps a pull for up to n() messages and maxBytes with the server and hands each message to emit as it arrives, until
// ctx ends or the bus is closed. When emit reports false, that message and the rest of its pull go back to the server. It
// returns up to two seconds after the end of ctx.
func (s *source) run(ctx context.Context, n func() int, maxBytes int, emit func(jetstream.Msg) bool) {
	defer s.strays.Wait()
	failures := 0
	for ctx.Err() == nil {
		got, err := s.pull(ctx, n(), maxBytes, emit)
		if got {
			failures = 0
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		failures++
		if failures == 10 {
			s.bus.log.Warn("messages cannot be received, trying on", slog.String("stream", s.stream), slog.String("consumer", s.cfg.Durable), slog.Any("err", err))
		}
		if s.bus.nc.IsClosed() {
			return
		}
		if errors.Is(err, ErrDisconnected) {
			s.bus.awaitConnection(ctx)
			continue
		}
		pause(ctx, failures, rebuildFirst, rebuildMost)
	}
}

// pull makes one pull and hands over what it brings. A nil error means that it ended in the regular way.
func (s *source) pull(ctx context.Context, n, maxBytes int, emit func(jetstream.Msg) bool) (got bool, err error) {
	consumer, err := s.ensure(ctx)
	if err != nil {
		return false, err
	}
	reconnected := s.bus.nextReconnect()
	var options []jetstream.FetchOpt
	if s.beat == 0 {
		options = append(options, jetstream.FetchMaxWait(pullWait))
	} else {
		long, cancel := context.WithTimeout(ctx, pullBeats*s.beat)
		defer cancel()
		options = append(options, jetstream.FetchContext(long), jetstream.FetchHeartbeat(s.beat))
	}
	if maxBytes > 0 {
		options = append(options, jetstream.FetchMaxBytes(maxBytes))
	}
	batch, err := consumer.Fetch(n, options...)
	if err != nil {
		return false, s.failed(err)
	}
	messages := batch.Messages()
	giveBack := func() {
		for msg := range messages {
			_ = msg.Nak() // lost: it is delivered again after its wait
		}
	}
	for {
		select {
		case msg, more := <-messages:
			if !more {
				return got, s.failed(batch.Error())
			}
			got = true
			if !emit(msg) {
				_ = msg.Nak()
				giveBack()
				return got, nil
			}
		case <-reconnected:
			// The server has forgotten this pull, and the next one should not wait for its end.
			s.strays.Go(giveBack)
			return got, nil
		}
	}
}

// failed sorts the ends of a pull: nil for the regular ones, else the consumer is looked up before the next.
func (s *source) failed(err error) error {
	switch {
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, nats.ErrTimeout),
		errors.Is(err, jetstream.ErrNoMessages), errors.Is(err, jetstream.ErrMaxBytesExceeded), errors.Is(err, jetstream.ErrBatchCompleted):
		return nil
	case !s.bus.nc.IsConnected():
		return ErrDisconnected
	}
	s.forget()
	return fmt.Errorf("pull from %s: %w", s.stream, err)
}

// received turns a message of the client library into ours. It reports false for one that comes from no stream.
func received(msg jetstream.Msg) (Message, bool) {
	meta, err := msg.Metadata()
	if err != nil {
		return Message{}, false
	}
	return Message{
		Subject: msg.Subject(), Data: msg.Data(), Header: events.Header(msg.Headers()),
		Sequence: meta.Sequence.Stream, Timestamp: meta.Timestamp, Delivered: meta.NumDelivered,
		Acker: acker{msg},
	}, true
}

// acker adds to the client library's message what events.Acker asks for.
type acker struct{ msg jetstream.Msg }

func (a acker) Ack() error { return a.msg.Ack() }

func (a acker) NakWithDelay(d time.Duration) error {
	if d <= 0 {
		return a.msg.Nak()
	}
	return a.msg.NakWithDelay(d)
}

func (a acker) InProgress() error { return a.msg.InProgress() }

func (a acker) Term(reason string) error { return a.msg.TermWithReason(reason) }
