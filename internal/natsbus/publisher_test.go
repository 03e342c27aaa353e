package natsbus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

func event(n int, id string) natsbus.Msg {
	return natsbus.Msg{Subject: "ax.event.email.running", Data: fmt.Append(nil, n), ID: id}
}

func TestPublishStoresEachOnce(t *testing.T) {
	_, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{InFlight: 10})
	header := events.Header{"ce-id": {"x"}}
	msgs := make([]natsbus.Msg, 300)
	for i := range msgs {
		msgs[i] = event(i%150, fmt.Sprint("id-", i%150)) // each twice
		msgs[i].Header = header
	}
	for i, err := range p.Publish(deadline(t), msgs) {
		require.NoError(t, err, i)
	}
	require.Len(t, bodies(t, b, events.StreamEvent), 150)
	require.Equal(t, events.Header{"ce-id": {"x"}}, header, "the caller's headers are not changed")
	require.Nil(t, p.Publish(deadline(t), nil))

	stream, err := b.JS().Stream(deadline(t), events.StreamEvent)
	require.NoError(t, err)
	m, err := stream.GetMsg(deadline(t), 1)
	require.NoError(t, err)
	require.Equal(t, "x", m.Header.Get("ce-id"))
	require.True(t, strings.HasPrefix(m.Header.Get(events.HeaderMsgID), "id-"))
}

func TestPublishTellsEachResult(t *testing.T) {
	_, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	errs := p.Publish(ctx, []natsbus.Msg{
		event(0, ""), {Subject: "ax.event.email.running", Data: make([]byte, 2<<20)}, {Subject: "no.such.stream"}, {Subject: ""}, event(1, ""),
	})
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], natsbus.ErrTooLarge)
	require.ErrorIs(t, errs[2], jetstream.ErrNoStreamResponse)
	require.Error(t, errs[3])
	require.NoError(t, errs[4])
	require.Len(t, bodies(t, b, events.StreamEvent), 2)
}

func TestPublishToAFullStream(t *testing.T) {
	_, b := start(t, func(o *natsbus.Options) { o.Sizes.Submit = 4 << 20 })
	p := publisher(t, b, natsbus.PublisherOptions{Trip: 1, AckTimeout: patience})
	submit := natsbus.Msg{Subject: "ax.submit.email", Data: make([]byte, 512<<10)}
	kept := 0
	for range 12 {
		if err := p.Publish(deadline(t), []natsbus.Msg{submit})[0]; err == nil {
			kept++
		} else {
			require.ErrorIs(t, err, natsbus.ErrFull)
		}
	}
	require.Positive(t, kept)
	require.Less(t, kept, 12)
	require.Equal(t, uint64(kept), streamState(t, b, events.StreamSubmit).Msgs, "what was accepted is there, what was refused is not")
	// A full stream is an answer, not a failure of NATS: the breaker, which opens at the first, stays closed.
	require.NoError(t, p.Publish(deadline(t), []natsbus.Msg{event(0, "")})[0])
}

func TestPublishToAFullLane(t *testing.T) {
	_, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{AckTimeout: patience}) // without ids, a second try would be stored again
	limit := 10_000
	msgs := make([]natsbus.Msg, limit+5)
	for i := range msgs {
		msgs[i] = natsbus.Msg{Subject: events.SubjectWork("email", "stable", "high")}
	}
	full := 0
	for _, err := range p.Publish(deadline(t), msgs) {
		if errors.Is(err, natsbus.ErrFull) {
			full++
		} else {
			require.NoError(t, err)
		}
	}
	require.Equal(t, 5, full)
	require.NoError(t, p.Publish(deadline(t), []natsbus.Msg{{Subject: events.SubjectWork("email", "stable", "low")}})[0], "other lanes have room")
}

// Callers publish through a restart: each message is stored once, and everybody is told so.
func TestPublishThroughARestart(t *testing.T) {
	server, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{InFlight: 50, AckTimeout: 500 * time.Millisecond})
	const callers, rounds, each = 8, 60, 10
	var wg sync.WaitGroup
	half := make(chan struct{}, callers)
	for caller := range callers {
		wg.Go(func() {
			for round := range rounds {
				if round == rounds/2 {
					half <- struct{}{}
				}
				msgs := make([]natsbus.Msg, each)
				for i := range msgs {
					msgs[i] = event(i, fmt.Sprint(caller, ":", round, ":", i))
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				for _, err := range p.Publish(ctx, msgs) {
					if err != nil {
						t.Error(err)
					}
				}
				cancel()
			}
		})
	}
	for range callers {
		<-half
	}
	require.NoError(t, server.Restart(deadline(t)))
	wg.Wait()
	require.Equal(t, uint64(callers*rounds*each), streamState(t, b, events.StreamEvent).Msgs)
}

func TestPublishFailsFastWhenItFailedForAWhile(t *testing.T) {
	server, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{Trip: 2, Cool: 300 * time.Millisecond, Deadline: 200 * time.Millisecond})
	require.NoError(t, server.Down())
	stacktest.Eventually(t, patience, "disconnected", func() bool { return !b.NC().IsConnected() })
	for range 2 {
		err := p.Publish(context.Background(), []natsbus.Msg{event(0, "a")})[0]
		require.Error(t, err)
		require.NotErrorIs(t, err, natsbus.ErrOpen)
	}
	begun := time.Now()
	for _, err := range p.Publish(context.Background(), []natsbus.Msg{event(0, "a"), event(1, "b")}) {
		require.ErrorIs(t, err, natsbus.ErrOpen)
	}
	require.Less(t, time.Since(begun), 100*time.Millisecond)

	require.NoError(t, server.Restart(deadline(t)))
	stacktest.Eventually(t, patience, "published again", func() bool {
		return p.Publish(context.Background(), []natsbus.Msg{event(0, "a")})[0] == nil
	})
	require.Equal(t, []string{"0"}, bodies(t, b, events.StreamEvent), "what failed was not sent later")
}

func TestPublishEndsWithItsCaller(t *testing.T) {
	server, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{Trip: 1})
	require.NoError(t, server.Down())
	for range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		require.Error(t, p.Publish(ctx, []natsbus.Msg{event(0, "a")})[0])
	}
	require.NoError(t, server.Restart(deadline(t)))
	stacktest.Eventually(t, patience, "connected", b.NC().IsConnected)
	require.NoError(t, p.Publish(deadline(t), []natsbus.Msg{event(0, "a")})[0], "callers that give up do not open the breaker")
	p.Close()
	require.ErrorIs(t, p.Publish(deadline(t), []natsbus.Msg{event(1, "b")})[0], natsbus.ErrClosed)
}

func ordered(t testing.TB, b *natsbus.Bus, opts natsbus.OrderedOptions) *natsbus.Ordered {
	o, err := b.Ordered(opts)
	require.NoError(t, err)
	t.Cleanup(o.Close)
	return o
}

// 5,000 messages of 50 keys with a restart in the middle: each key's are stored in order, once, and none is missing.
func TestOrderedKeepsTheOrderOfEachKey(t *testing.T) {
	const keys, each = 50, 100
	server, b := start(t)
	o := ordered(t, b, natsbus.OrderedOptions{Limit: 300, AckTimeout: 500 * time.Millisecond})
	ctx := deadline(t)
	var last uint64
	var restarted sync.WaitGroup
	for i := range keys * each {
		if i == keys*each/2 {
			restarted.Go(func() {
				if err := server.Restart(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		key := i % keys
		var err error
		last, err = o.Send(ctx, fmt.Sprint(key), natsbus.Msg{
			Subject: events.SubjectEvent("email", "running"), Data: fmt.Appendf(nil, "%d %d", key, i/keys), ID: fmt.Sprint(key, ":", i/keys),
		})
		require.NoError(t, err)
		require.Equal(t, uint64(i+1), last)
		require.LessOrEqual(t, last-o.Acked(), uint64(300), "bounded")
	}
	restarted.Wait()
	require.NoError(t, o.Wait(ctx, last))
	require.Equal(t, last, o.Acked())
	next := map[int]int{}
	stored := bodies(t, b, events.StreamEvent)
	require.Len(t, stored, keys*each)
	for _, body := range stored {
		var key, n int
		_, err := fmt.Sscan(body, &key, &n)
		require.NoError(t, err)
		require.Equal(t, next[key], n, "key %d", key)
		next[key]++
	}
}

func TestOrderedWaitsWhileNATSIsAway(t *testing.T) {
	server, b := start(t)
	o := ordered(t, b, natsbus.OrderedOptions{Limit: 3})
	require.NoError(t, server.Down())
	stacktest.Eventually(t, patience, "disconnected", func() bool { return !b.NC().IsConnected() })
	for i := range 3 {
		_, err := o.Send(deadline(t), "a", event(i, fmt.Sprint(i)))
		require.NoError(t, err)
	}
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := o.Send(short, "b", event(3, "3"))
	require.ErrorIs(t, err, context.DeadlineExceeded, "it is bounded")
	require.ErrorIs(t, o.Wait(short, 1), context.DeadlineExceeded)
	require.Zero(t, o.Acked())

	require.NoError(t, server.Restart(deadline(t)))
	require.NoError(t, o.Wait(deadline(t), 3))
	require.Equal(t, []string{"0", "1", "2"}, bodies(t, b, events.StreamEvent))
}

func TestOrderedGoesOnAfterALostStore(t *testing.T) {
	server, b := start(t)
	watch(t, b)
	o := ordered(t, b, natsbus.OrderedOptions{})
	require.NoError(t, o.PublishOrdered(deadline(t), []string{"a", "a"}, []natsbus.Msg{event(0, "0"), event(1, "1")}))
	require.NoError(t, server.Wipe(deadline(t)))
	require.NoError(t, o.PublishOrdered(deadline(t), []string{"a", "b"}, []natsbus.Msg{event(2, "2"), event(3, "3")}))
	require.ElementsMatch(t, []string{"2", "3"}, bodies(t, b, events.StreamEvent))
}

func TestOrderedLeavesOutWhatCanNeverBeStored(t *testing.T) {
	_, b := start(t)
	var rejected []string
	o := ordered(t, b, natsbus.OrderedOptions{OnReject: func(m natsbus.Msg, err error) {
		require.ErrorIs(t, err, natsbus.ErrTooLarge)
		rejected = append(rejected, m.ID)
	}})
	big := natsbus.Msg{Subject: "ax.event.email.running", Data: make([]byte, 2<<20), ID: "big"}
	require.NoError(t, o.PublishOrdered(deadline(t), []string{"a", "a", "a"}, []natsbus.Msg{event(0, "0"), big, event(1, "1")}))
	require.Equal(t, []string{"0", "1"}, bodies(t, b, events.StreamEvent))
	require.Equal(t, []string{"big"}, rejected)
}

// Closing the bus first must not count as "can never be stored": the caller would take the messages for published.
func TestOrderedDoesNotTakeAClosedBusForARefusal(t *testing.T) {
	_, b := start(t)
	o := ordered(t, b, natsbus.OrderedOptions{OnReject: func(m natsbus.Msg, err error) { t.Errorf("%s was rejected: %v", m.ID, err) }})
	b.Close()
	n, err := o.Send(deadline(t), "a", event(0, "0"))
	require.NoError(t, err)
	waited := make(chan error)
	go func() { waited <- o.Wait(context.Background(), n) }()
	o.Close()
	require.ErrorIs(t, <-waited, natsbus.ErrClosed)
	require.Zero(t, o.Acked())
	_, err = o.Send(context.Background(), "a", event(1, "1"))
	require.ErrorIs(t, err, natsbus.ErrClosed)
}
