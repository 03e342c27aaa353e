package natsbus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	running = "ax.event.email.running"
	failed  = "ax.event.email.failed"
)

func subscriber(t testing.TB, b *natsbus.Bus, opts natsbus.SubscriberOptions) *natsbus.Subscriber {
	opts.Stream, opts.Durable = events.StreamEvent, "audit"
	s, err := b.WatermillSubscriber(opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// route runs a router with one handler until the end of the test.
func route(t testing.TB, b *natsbus.Bus, s *natsbus.Subscriber, topic string, handle message.NoPublishHandlerFunc, with ...message.HandlerMiddleware) {
	r, err := b.NewRouter(natsbus.RouterOptions{HandlerTimeout: 5 * time.Second, CloseTimeout: 5 * time.Second})
	require.NoError(t, err)
	r.AddConsumerHandler("audit", topic, s, handle).AddMiddleware(with...)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		wg.Wait()
	})
	select {
	case <-r.Running():
	case <-time.After(patience):
		t.Fatal("the router does not run")
	}
}

// tally counts what handlers saw, by body.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *tally) add(msg *message.Message) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[string(msg.Payload)]++
	return c.seen[string(msg.Payload)]
}

func (c *tally) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

func TestWatermillMessagesCarryTheirHeaders(t *testing.T) {
	_, b := start(t)
	got := make(chan *message.Message, 10)
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{}), "ax.event.*.running", func(msg *message.Message) error {
		got <- msg
		return nil
	})
	for _, h := range []nats.Header{
		{"Nats-Msg-Id": {"id-1"}, "ce-id": {"a", "b"}, "traceparent": {"00-1-2-01"}, "empty": {}},
		nil,
	} {
		_, err := b.JS().PublishMsg(deadline(t), &nats.Msg{Subject: running, Data: []byte("x"), Header: h})
		require.NoError(t, err)
	}
	publish(t, b, failed, "not subscribed to")
	first, second := <-got, <-got
	if first.Metadata.Get(natsbus.MetaSequence) == "2" {
		first, second = second, first
	}
	require.Equal(t, "id-1", first.UUID)
	require.Equal(t, "a", first.Metadata.Get("ce-id"), "a repeated header is no reason to fail")
	require.Equal(t, running, first.Metadata.Get(natsbus.MetaSubject))
	require.Equal(t, "1", first.Metadata.Get(natsbus.MetaDelivered))
	require.Equal(t, "00-1-2-01", middleware.MessageCorrelationID(first))
	require.NotEmpty(t, first.Metadata.Get(natsbus.MetaTimestamp))
	require.Equal(t, "AX_EVENT:2", second.UUID)
	require.Equal(t, "AX_EVENT:2", middleware.MessageCorrelationID(second))
	require.Empty(t, got)
}

func TestWatermillHandlesSideBySide(t *testing.T) {
	_, b := start(t)
	const side = 4
	var inside, most atomic.Int64
	var all tally
	met := make(chan struct{})
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{InFlight: side}), "ax.event.>", func(msg *message.Message) error {
		if n := inside.Add(1); n == side {
			select {
			case <-met:
			default:
				close(met)
			}
		} else if n > most.Load() {
			most.Store(n)
		}
		defer inside.Add(-1)
		<-met
		all.add(msg)
		return nil
	})
	publish(t, b, running, numbers(40)...)
	stacktest.Eventually(t, patience, "all are handled", func() bool { return all.count() == 40 })
	require.LessOrEqual(t, most.Load(), int64(side))
}

func TestWatermillTriesAgain(t *testing.T) {
	_, b := start(t)
	var all tally
	done := make(chan struct{})
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{RetryFirst: 10 * time.Millisecond}), "ax.event.>", func(msg *message.Message) error {
		switch all.add(msg) {
		case 1:
			return errors.New("not yet")
		case 2:
			panic("not yet either")
		}
		close(done)
		return nil
	})
	publish(t, b, running, "x")
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("not tried again")
	}
	stacktest.Eventually(t, patience, "settled", func() bool {
		c, err := b.JS().Consumer(deadline(t), events.StreamEvent, "audit-ax_event_all")
		return err == nil && c.CachedInfo().NumAckPending == 0
	})
}

// A handler that takes longer than the server waits is not called a second time.
func TestWatermillKeepsWhatIsBeingHandled(t *testing.T) {
	_, b := start(t)
	var all tally
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{AckWait: 300 * time.Millisecond}), "ax.event.>", func(msg *message.Message) error {
		all.add(msg)
		if string(msg.Payload) == "slow" {
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			<-timer.C
		}
		return nil
	})
	publish(t, b, running, "slow", "quick")
	stacktest.Eventually(t, patience, "both are handled", func() bool { return all.count() == 2 })
	stacktest.Eventually(t, patience, "settled", func() bool {
		c, err := b.JS().Consumer(deadline(t), events.StreamEvent, "audit-ax_event_all")
		return err == nil && c.CachedInfo().NumAckPending == 0
	})
	require.Equal(t, map[string]int{"slow": 1, "quick": 1}, all.seen)
}

func TestWatermillBreakerSparesTheHandler(t *testing.T) {
	_, b := start(t)
	var calls atomic.Int64
	var broken atomic.Bool
	broken.Store(true)
	var all tally
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{InFlight: 1, RetryFirst: time.Millisecond}), "ax.event.>", func(msg *message.Message) error {
		calls.Add(1)
		if broken.Load() {
			return errors.New("down")
		}
		all.add(msg)
		return nil
	}, b.Breaker(natsbus.BreakerOptions{Name: "audit", Trip: 3, Cool: time.Second}))
	publish(t, b, running, numbers(50)...)
	stacktest.Eventually(t, patience, "every message was delivered", func() bool {
		c, err := b.JS().Consumer(deadline(t), events.StreamEvent, "audit-ax_event_all")
		return err == nil && c.CachedInfo().NumPending == 0
	})
	require.LessOrEqual(t, calls.Load(), int64(6), "three failures, and perhaps a try or two since")
	broken.Store(false)
	stacktest.Eventually(t, patience, "all are handled once it works again", func() bool { return all.count() == 50 })
}

func TestWatermillSurvivesRestartDeletionAndLoss(t *testing.T) {
	server, b := start(t)
	watch(t, b)
	var all tally
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{AckWait: 2 * time.Second}), "ax.event.*.running", func(msg *message.Message) error {
		all.add(msg)
		return nil
	})
	p := publisher(t, b, natsbus.PublisherOptions{Deadline: patience})
	send := func(from, to int) {
		for i := from; i < to; i++ {
			require.NoError(t, p.Publish(deadline(t), []natsbus.Msg{{Subject: running, Data: fmt.Append(nil, i), ID: fmt.Sprint(i)}})[0])
		}
		stacktest.Eventually(t, patience, fmt.Sprint(to, " are handled"), func() bool { return all.count() == to })
	}
	send(0, 20)
	require.NoError(t, server.Restart(deadline(t)))
	send(20, 40)
	require.NoError(t, b.JS().DeleteConsumer(deadline(t), events.StreamEvent, "audit-ax_event_any_running"))
	send(40, 60)
	require.NoError(t, server.Wipe(deadline(t)))
	send(60, 80)
}

func TestWatermillNewStaysNewWhenTheConsumerIsDeleted(t *testing.T) {
	_, b := start(t)
	publish(t, b, running, "old")
	var all tally
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{New: true}), "ax.event.>", func(msg *message.Message) error {
		all.add(msg)
		return nil
	})
	require.NoError(t, b.JS().DeleteConsumer(deadline(t), events.StreamEvent, "audit-ax_event_all"))
	publish(t, b, running, "new") // perhaps before the consumer is there again
	stacktest.Eventually(t, patience, "the new one is handled", func() bool { return all.count() == 1 })
	require.Equal(t, map[string]int{"new": 1}, all.seen)
}

func TestWatermillCloseGivesBack(t *testing.T) {
	_, b := start(t)
	publish(t, b, running, numbers(10)...)
	s := subscriber(t, b, natsbus.SubscriberOptions{InFlight: 5})
	out, err := s.Subscribe(context.Background(), "ax.event.>")
	require.NoError(t, err)
	first := <-out
	require.True(t, first.Ack())
	taken := <-out // being handled when the subscriber closes: its context ends, and it can still be settled
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	<-taken.Context().Done()
	require.True(t, taken.Ack())
	require.NoError(t, <-closed)
	for range out { // closed
		t.Fatal("handed out after the close")
	}
	_, err = s.Subscribe(context.Background(), "ax.event.>")
	require.ErrorIs(t, err, natsbus.ErrClosed)

	var all tally
	begun := time.Now()
	route(t, b, subscriber(t, b, natsbus.SubscriberOptions{}), "ax.event.>", func(msg *message.Message) error {
		all.add(msg)
		return nil
	})
	stacktest.Eventually(t, patience, "the rest is handled", func() bool { return all.count() == 8 })
	require.Less(t, time.Since(begun), 10*time.Second, "and not only after the server's 30 s")
	require.NotContains(t, all.seen, string(taken.Payload))
}

func TestWatermillPublisher(t *testing.T) {
	_, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{}).WatermillPublisher()
	require.NoError(t, p.Publish(running))
	m := message.NewMessage("uuid-1", []byte("x"))
	m.Metadata.Set("ce-id", "a")
	m.Metadata.Set(natsbus.MetaSequence, "7")
	require.NoError(t, p.Publish(running, m, m), "the second is the same message and stored once")
	stream, err := b.JS().Stream(deadline(t), events.StreamEvent)
	require.NoError(t, err)
	require.Equal(t, uint64(1), stream.CachedInfo().State.Msgs)
	raw, err := stream.GetMsg(deadline(t), 1)
	require.NoError(t, err)
	require.Equal(t, nats.Header{"Nats-Msg-Id": {"uuid-1"}, "ce-id": {"a"}}, raw.Header)

	require.ErrorIs(t, p.Publish(running, message.NewMessage("uuid-2", make([]byte, 2<<20))), natsbus.ErrTooLarge)
	require.NoError(t, p.Close())
	require.NoError(t, p.Publish(running, message.NewMessage("uuid-3", nil)), "the publisher itself is its owner's")
}

func TestWatermillSubscriberNeedsAStreamItMayUse(t *testing.T) {
	_, b := start(t)
	_, err := b.WatermillSubscriber(natsbus.SubscriberOptions{Stream: events.StreamSubmit, Durable: "x"})
	require.ErrorContains(t, err, "AX_SUBMIT")
	_, err = b.WatermillSubscriber(natsbus.SubscriberOptions{Stream: events.StreamDead})
	require.ErrorContains(t, err, "durable")
}
