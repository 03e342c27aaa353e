package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Subscription is a running subscription, made by [Subscribe].
//
// Dropping what is not above the last seq is right only if nothing is overtaken. The server delivers in the order of the
// stream and numbers its deliveries, but a delivery that is lost with a connection comes again seconds later, behind newer
// ones. So a missing number ends the use of a consumer: a new one begins with the oldest event not settled yet.
type Subscription struct {
	js      jetstream.JetStream
	opts    SubscribeOptions
	handler func(context.Context, Event) error
	filters []string
	order   *inOrder
	cancel  context.CancelFunc
	done    chan struct{}

	name  string // of the consumer in use
	first uint64 // number of its next delivery when it was attached to

	mu      sync.Mutex
	created time.Time            // of the stream: another time means another stream, whose sequences begin anew
	epoch   int                  // counts the streams met
	next    uint64               // everything before this sequence of this stream was received; 0: begin at opts.Since
	open    map[uint64]*delivery // received from this stream and not settled
	seen    *seen
}

var errLost = errors.New("a delivery was lost on its way")

// Stop ends the subscription and returns when no handler runs any more. Events not handled by then go to the next
// subscription of the same name.
func (s *Subscription) Stop() {
	s.cancel()
	<-s.done
}

// Done is closed when the subscription has ended, for whatever reason.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// resume is the oldest sequence that is not settled. The caller holds mu.
func (s *Subscription) resume() uint64 {
	from := s.next
	for sequence := range s.open {
		from = min(from, sequence)
	}
	return from
}

// run receives until ctx ends, and builds the consumer anew whenever it breaks.
func (s *Subscription) run(ctx context.Context, consumer jetstream.Consumer) {
	defer close(s.done)
	defer s.leave()
	defer s.order.close()
	defer s.cancel()
	failures := 0
	for {
		if consumer != nil {
			since := time.Now()
			err := s.consume(ctx, consumer)
			if ctx.Err() != nil || errors.Is(err, jetstream.ErrConnectionClosed) {
				return
			}
			s.opts.Log.Info("event subscription interrupted, building it anew", slog.String("component", "events"), slog.Any("err", err))
			if time.Since(since) > ackWait {
				failures = 0
			}
		}
		failures++
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff(failures, 20*time.Millisecond, 3*time.Second)):
		}
		var err error
		if consumer, err = s.attach(ctx); errors.Is(err, nats.ErrConnectionClosed) {
			return
		}
	}
}

// consume receives from one consumer until ctx ends or the consumer breaks; the error says why it broke.
func (s *Subscription) consume(ctx context.Context, consumer jetstream.Consumer) error {
	broken := make(chan error, 1)
	fail := func(err error) {
		select {
		case broken <- err:
		default:
		}
	}
	expected := s.first
	receive := func(msg jetstream.Msg) { // called for one message after the other
		meta, err := msg.Metadata()
		if err != nil {
			return // no message of a stream; nothing to acknowledge either
		}
		if meta.Sequence.Consumer != expected {
			expected = 0 // no delivery has this number: whatever follows is ignored as well
			fail(errLost)
			return
		}
		expected++
		s.receive(msg, meta.Sequence.Stream)
	}
	var missed int // heartbeats, each soon after the one before; only one goroutine reports them
	var missedAt time.Time
	onError := func(_ jetstream.ConsumeContext, err error) {
		switch {
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			// The library has sent a new pull already. Only when that does not help either, the consumer is given up.
			if time.Since(missedAt) > 6*pullHeartbeat {
				missed = 0
			}
			missedAt = time.Now()
			if missed++; missed >= 4 {
				fail(err)
			}
		case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound),
			errors.Is(err, jetstream.ErrConnectionClosed), errors.Is(err, jetstream.ErrBadRequest), errors.Is(err, nats.ErrNoResponders):
			fail(err)
		default: // leadership changes, server shutdown: the next pull or reconnect takes care
		}
	}
	receiving, err := consumer.Consume(receive, jetstream.PullMaxMessages(s.opts.MaxPending), jetstream.PullExpiry(pullExpiry),
		jetstream.PullHeartbeat(pullHeartbeat), jetstream.ConsumeErrHandler(onError))
	if err != nil {
		return err
	}
	defer func() {
		receiving.Drain() // what has arrived is taken, rather than delivered once more
		select {
		case <-receiving.Closed():
		case <-time.After(apiTimeout): // the connection was closed meanwhile; nothing more can arrive
		}
	}()
	keepAlive := time.NewTicker(ackWait / 3)
	defer keepAlive.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			return err
		case <-keepAlive.C:
			s.keepOpen()
		}
	}
}

// receive takes one message from the consumer; it does not block.
func (s *Subscription) receive(msg jetstream.Msg, sequence uint64) {
	event, err := DecodeEvent(msg.Data())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = max(s.next, sequence+1)
	if err != nil {
		s.opts.Log.Error("event cannot be read, left out", slog.String("component", "events"), slog.Uint64("sequence", sequence), slog.Any("err", err))
		_ = msg.TermWithReason("not an event") // a lost Term only delivers it again
		return
	}
	if again, ok := s.open[sequence]; ok {
		again.msg = msg // the newest delivery is the one to acknowledge
		return
	}
	d := &delivery{event: event, sequence: sequence, epoch: s.epoch, msg: msg}
	s.open[sequence] = d
	s.order.add(d)
}

// handle is called by inOrder, one at a time per task.
func (s *Subscription) handle(ctx context.Context, d *delivery) error {
	s.mu.Lock()
	last := s.seen.last(d.event.ID)
	s.mu.Unlock()
	if d.event.Seq > last {
		if err := s.handler(ctx, d.event); err != nil {
			if ctx.Err() == nil {
				s.opts.Log.Warn("event handler failed, trying again", slog.String("component", "events"), slog.String("task_id", d.event.ID),
					slog.Int64("seq", d.event.Seq), slog.Int("try", d.tries+1), slog.Any("err", err))
			}
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.mark(d.event.ID, d.event.Seq)
	// An acknowledgement for a former stream would settle another message under the same number in this one.
	if d.epoch == s.epoch {
		delete(s.open, d.sequence)
		_ = d.msg.Ack() // lost or refused: it is delivered again and dropped by its seq
	}
	return nil
}

// keepOpen keeps the server from delivering again what waits here.
func (s *Subscription) keepOpen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.open {
		_ = d.msg.InProgress() // lost: it is delivered again and recognised
	}
}
