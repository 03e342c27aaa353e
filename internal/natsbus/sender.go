package natsbus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/pkg/events"
)

// sender publishes without waiting and calls back with the answer. At most so many messages as it has slots are sent and
// not answered at any time.
type sender struct {
	js      jetstream.JetStream
	slots   chan struct{}
	metrics *metrics
	options []jetstream.PublishOpt

	mu      sync.Mutex
	flights map[*nats.Msg]func(error)
}

func (b *Bus) newSender(inflight int, ackTimeout time.Duration) (*sender, error) {
	s := &sender{
		slots: make(chan struct{}, inflight), metrics: b.metrics, flights: make(map[*nats.Msg]func(error)),
		// The callers try again themselves, with their own pauses and deadlines.
		options: []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)},
	}
	var err error
	s.js, err = jetstream.New(b.nc,
		jetstream.WithPublishAsyncMaxPending(inflight+1), // never reached: the slots come first
		jetstream.WithPublishAsyncTimeout(ackTimeout),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, ack *jetstream.PubAck) { s.answered(m, ack, nil) }),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) { s.answered(m, nil, err) }),
	)
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	return s, nil
}

// send publishes one message when a slot is free. done is called exactly once, perhaps before send returns, with nil when
// the message is stored. It must neither block nor publish: the client library may hold a lock. An error of ctx means that
// nothing was sent.
func (s *sender) send(ctx context.Context, m events.Msg, done func(error)) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		done(ctx.Err())
		return
	}
	msg := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: header(m)}
	s.mu.Lock()
	s.flights[msg] = done
	s.mu.Unlock()
	s.metrics.inflight.Inc()
	if _, err := s.js.PublishMsgAsync(msg, s.options...); err != nil {
		s.answered(msg, nil, err)
	}
}

// header copies the headers of a message and adds its id: the caller's may be shared, also with a copy sent before.
func header(m events.Msg) nats.Header {
	h := make(nats.Header, len(m.Header)+1)
	for name, values := range m.Header {
		h[name] = values
	}
	if m.ID != "" {
		h.Set(events.HeaderMsgID, m.ID)
	}
	return h
}

func (s *sender) answered(m *nats.Msg, ack *jetstream.PubAck, err error) {
	s.mu.Lock()
	done, ok := s.flights[m]
	delete(s.flights, m)
	s.mu.Unlock()
	if !ok {
		return
	}
	<-s.slots
	s.metrics.inflight.Dec()
	if err == nil {
		result := "stored"
		if ack.Duplicate {
			result = "duplicate"
		}
		s.metrics.published.WithLabelValues(result).Inc()
	}
	done(err)
}

// close gives up what is not answered yet.
func (s *sender) close() { s.js.CleanupPublisher() }
