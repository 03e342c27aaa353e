package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Metadata that a received Watermill message has besides the headers of the NATS message.
const (
	MetaSubject   = "ax_subject"
	MetaSequence  = "ax_sequence"  // in the stream
	MetaDelivered = "ax_delivered" // 1 at the first delivery
	MetaTimestamp = "ax_timestamp" // when the stream stored it
	// MetaNakDelay, set by a handler or middleware, is the pause before the next delivery if it fails; a Go duration.
	MetaNakDelay = "ax_nak_delay"
)

// SubscriberOptions choose the consumer of a Watermill subscriber.
type SubscriberOptions struct {
	// Stream is AX_EVENT or AX_DEAD; a work queue has its own consumers.
	Stream string
	// Durable begins the names of the consumers, one for each topic. Processes that use the same name share the messages.
	Durable string
	// InFlight is how many messages are handed out and not settled, per Subscribe; default 32.
	InFlight int
	// AckWait is after how long the server delivers a message again that it hears nothing of; default 30 s. A message being
	// handled renews it.
	AckWait time.Duration
	// New begins with what is published from now on, when the consumer is first made; default is everything there is. A
	// consumer that is deleted while in use begins again an hour behind the newest message it had received.
	New bool
	// RetryFirst and RetryMost bound the pause after a failure (default 1 s to 5 min); it doubles with each delivery.
	RetryFirst, RetryMost time.Duration
}

// Subscriber is a Watermill subscriber on pull consumers. Messages come at least once and, because several are handled at
// a time and failed ones come again later, in no order: it is for idempotent handlers.
type Subscriber struct {
	bus    *Bus
	opts   SubscriberOptions
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

var _ message.Subscriber = (*Subscriber)(nil)

// WatermillSubscriber makes a subscriber. Close it, or the router that uses it, before the bus.
func (b *Bus) WatermillSubscriber(opts SubscriberOptions) (*Subscriber, error) {
	if opts.Stream != events.StreamEvent && opts.Stream != events.StreamDead {
		return nil, fmt.Errorf("subscriber: stream %q: give %s or %s", opts.Stream, events.StreamEvent, events.StreamDead)
	}
	if opts.Durable == "" {
		return nil, errors.New("subscriber: a durable name is needed")
	}
	opts.InFlight = cmp.Or(opts.InFlight, 32)
	opts.AckWait = cmp.Or(opts.AckWait, 30*time.Second)
	opts.RetryFirst = cmp.Or(opts.RetryFirst, time.Second)
	opts.RetryMost = cmp.Or(opts.RetryMost, 5*time.Minute)
	s := &Subscriber{bus: b, opts: opts}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// replay is how far a consumer that was deleted under us goes back behind the newest message it had received: what failed
// and waited for its next try was known to the deleted one only.
const replay = time.Hour

// consumerName makes a name of a durable and a topic: audit and ax.event.*.failed are audit-ax_event_any_failed.
func consumerName(durable, topic string) string {
	return durable + "-" + strings.NewReplacer(".", "_", "*", "any", ">", "all", " ", "_").Replace(topic)
}

// Subscribe receives the messages whose subject matches topic, which may have wildcards. The channel is closed when ctx
// ends or the subscriber is closed, after the messages handed out were settled or given back.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	cfg := jetstream.ConsumerConfig{
		Durable: consumerName(s.opts.Durable, topic), FilterSubject: topic, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: s.opts.AckWait, MaxDeliver: -1,
		// What waits for its next try keeps its place here, so there must be more than are in flight.
		MaxAckPending: max(1000, 10*s.opts.InFlight),
	}
	if s.opts.New {
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	source := &source{bus: s.bus, stream: s.opts.Stream, cfg: cfg}
	consumer, err := source.ensure(ctx)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	if s.opts.New {
		source.beginAgainAt(consumer.CachedInfo().Created)
	}
	if s.ctx.Err() != nil {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	out := make(chan *message.Message)
	s.wg.Go(func() {
		defer stop()
		defer cancel()
		defer close(out)
		var open sync.WaitGroup
		defer open.Wait()
		slots := make(chan struct{}, s.opts.InFlight)
		source.run(ctx, func() int { return s.opts.InFlight }, 0, func(m jetstream.Msg) bool {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return false
			}
			if meta, err := m.Metadata(); err == nil {
				source.beginAgainAt(meta.Timestamp.Add(-replay))
			}
			open.Go(func() {
				defer func() { <-slots }()
				s.deliver(ctx, m, out)
			})
			return true
		})
	})
	return out, nil
}

// deliver hands one message out and settles it. The acknowledgement is sent and not waited for.
func (s *Subscriber) deliver(ctx context.Context, m jetstream.Msg, out chan<- *message.Message) {
	msg := unmarshal(m)
	msgCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	msg.SetContext(msgCtx)
	alive := time.NewTicker(s.opts.AckWait / 3)
	defer alive.Stop()
	hand, ending := out, ctx.Done()
	var grace <-chan time.Time
	for {
		select {
		case hand <- msg:
			hand = nil
		case <-msg.Acked():
			_ = m.Ack() // lost: delivered again, and the handler is idempotent
			return
		case <-msg.Nacked():
			_ = m.NakWithDelay(s.nakDelay(ctx, msg, m)) // lost: delivered again after AckWait
			return
		case <-alive.C:
			_ = m.InProgress()
		case <-ending:
			if hand != nil { // nobody took it
				_ = m.Nak()
				return
			}
			ending, grace = nil, time.After(closeGrace)
		case <-grace:
			_ = m.Nak()
			return
		}
	}
}

// closeGrace is how long a closing subscriber waits for a handler, whose context has ended, to settle its message.
const closeGrace = 5 * time.Second

func (s *Subscriber) nakDelay(ctx context.Context, msg *message.Message, m jetstream.Msg) time.Duration {
	if ctx.Err() != nil {
		return 0 // for another process, at once
	}
	if d, err := time.ParseDuration(msg.Metadata.Get(MetaNakDelay)); err == nil && d > 0 {
		return d
	}
	delivered := 1
	if meta, err := m.Metadata(); err == nil {
		delivered = int(min(meta.NumDelivered, 100))
	}
	return delay(delivered, s.opts.RetryFirst, s.opts.RetryMost)
}

// Close ends all subscriptions and returns when their channels are closed, after a second and what handlers take.
func (s *Subscriber) Close() error {
	s.cancel()
	s.wg.Wait()
	return nil
}

// unmarshal never fails: whatever somebody published gets to the handler, which can refuse it. Of a repeated header the
// first value counts.
func unmarshal(m jetstream.Msg) *message.Message {
	h := events.Header(m.Headers())
	msg := message.NewMessage(cmp.Or(h.Get(events.HeaderMsgID), h.Get(events.HeaderCEID)), m.Data())
	for name := range h {
		msg.Metadata[name] = h.Get(name)
	}
	msg.Metadata[MetaSubject] = m.Subject()
	if meta, err := m.Metadata(); err == nil {
		msg.Metadata[MetaSequence] = strconv.FormatUint(meta.Sequence.Stream, 10)
		msg.Metadata[MetaDelivered] = strconv.FormatUint(meta.NumDelivered, 10)
		msg.Metadata[MetaTimestamp] = events.FormatTime(meta.Timestamp)
		msg.UUID = cmp.Or(msg.UUID, meta.Stream+":"+msg.Metadata[MetaSequence])
	}
	middleware.SetCorrelationID(cmp.Or(msg.Metadata[events.HeaderTraceparent], msg.UUID), msg)
	return msg
}

// WatermillPublisher is a Watermill publisher on a [Publisher]. Metadata become headers. The message's Nats-Msg-Id is the
// metadata of that name, or else its UUID.
type WatermillPublisher struct{ publisher *Publisher }

var _ message.Publisher = (*WatermillPublisher)(nil)

// WatermillPublisher adapts a publisher, which stays the caller's to close.
func (p *Publisher) WatermillPublisher() *WatermillPublisher { return &WatermillPublisher{p} }

// Publish publishes to the subject topic, waits for all acknowledgements, and joins the errors of what was not stored.
// The deadline is that of the first message's context.
func (w *WatermillPublisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	msgs := make([]Msg, len(messages))
	for i, m := range messages {
		msgs[i] = Msg{Subject: topic, Data: m.Payload, Header: make(events.Header, len(m.Metadata)), ID: cmp.Or(m.Metadata.Get(events.HeaderMsgID), m.UUID)}
		for name, value := range m.Metadata {
			if !strings.HasPrefix(name, "ax_") { // ours, about the message it was made from
				msgs[i].Header.Set(name, value)
			}
		}
	}
	return errors.Join(w.publisher.Publish(messages[0].Context(), msgs)...)
}

// Close does nothing: the publisher belongs to who made it.
func (w *WatermillPublisher) Close() error { return nil }
