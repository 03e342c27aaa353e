package natsbus_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

func submitConsumer(t testing.TB, b *natsbus.Bus) *natsbus.SubmitConsumer {
	c, err := b.SubmitConsumer(deadline(t))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// take reads n messages in batches of at most most, and acknowledges them.
func take(t testing.TB, c *natsbus.SubmitConsumer, n, most int) (got []natsbus.Message, batches int) {
	t.Helper()
	for len(got) < n {
		batch, err := c.NextBatch(deadline(t), most)
		require.NoError(t, err)
		require.NotEmpty(t, batch)
		require.LessOrEqual(t, len(batch), most)
		for _, m := range batch {
			require.NoError(t, m.Ack())
		}
		got = append(got, batch...)
		batches++
	}
	return got, batches
}

func dataOf(messages []natsbus.Message) []string {
	var got []string
	for _, m := range messages {
		got = append(got, string(m.Data))
	}
	return got
}

func TestSubmitArrivesWithWhatIdentifiesIt(t *testing.T) {
	_, b := start(t)
	c := submitConsumer(t, b)
	for i := range 2 {
		_, err := b.JS().PublishMsg(deadline(t), &nats.Msg{Subject: "ax.submit.email", Data: []byte("{}"), Header: nats.Header{"Ax-Reply-To": {"a", "b"}, "empty": {}}})
		require.NoError(t, err)
		batch, err := c.NextBatch(deadline(t), 10)
		require.NoError(t, err)
		require.Len(t, batch, 1)
		m := batch[0]
		require.Equal(t, "ax.submit.email", m.Subject)
		require.Equal(t, "a", m.Header.Get(events.HeaderReplyTo), "of a repeated header the first value counts")
		require.Equal(t, uint64(i+1), m.Sequence)
		require.Equal(t, uint64(1), m.Delivered)
		require.WithinDuration(t, time.Now(), m.Timestamp, time.Minute)
		require.NoError(t, m.Ack())
	}
	publish(t, b, events.SubjectWorkflow, "flow")
	batch, err := c.NextBatch(deadline(t), 10)
	require.NoError(t, err)
	require.Equal(t, events.SubjectWorkflow, batch[0].Subject)
	require.NoError(t, batch[0].Ack())
	stacktest.Eventually(t, patience, "what is acknowledged leaves the stream", func() bool {
		return streamState(t, b, events.StreamSubmit).Msgs == 0
	})
}

func TestSubmitBurstComesInBatchesAndInOrder(t *testing.T) {
	_, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{})
	msgs := make([]natsbus.Msg, 3000)
	for i := range msgs {
		msgs[i] = natsbus.Msg{Subject: "ax.submit.email", Data: fmt.Append(nil, i)}
	}
	for _, err := range p.Publish(deadline(t), msgs) {
		require.NoError(t, err)
	}
	c := submitConsumer(t, b)
	first, err := c.NextBatch(deadline(t), 1)
	require.NoError(t, err)
	require.NoError(t, first[0].Ack())
	got, batches := take(t, c, len(msgs)-1, 500)
	got = append(first, got...)
	require.True(t, slices.IsSortedFunc(got, func(a, b natsbus.Message) int { return int(a.Sequence) - int(b.Sequence) }))
	require.ElementsMatch(t, numbers(3000), dataOf(got))
	require.Less(t, batches, 300, "a burst is not handled one by one")
}

func TestSubmitSingleArrivesAtOnce(t *testing.T) {
	_, b := start(t)
	c := submitConsumer(t, b)
	var waits []time.Duration
	for range 100 {
		begun := time.Now()
		publish(t, b, "ax.submit.email", "{}")
		take(t, c, 1, 10)
		waits = append(waits, time.Since(begun))
	}
	slices.Sort(waits)
	t.Logf("publish to receive: median %s, slowest %s", waits[50], waits[99])
	require.Less(t, waits[50], 50*time.Millisecond, "it does not wait for a pull to end or a batch to fill")
}

func TestSubmitComesAgainUntilSettled(t *testing.T) {
	_, b := start(t)
	publish(t, b, "ax.submit.email", "again", "term", "ack", "given back")
	c := submitConsumer(t, b)
	var batch []natsbus.Message
	for len(batch) < 4 {
		more, err := c.NextBatch(deadline(t), 3)
		require.NoError(t, err)
		batch = append(batch, more...)
	}
	require.NoError(t, batch[0].NakWithDelay(10*time.Millisecond))
	require.NoError(t, batch[1].Term("poison"))
	require.NoError(t, batch[2].Ack())
	require.NoError(t, batch[3].NakWithDelay(0))
	require.Error(t, batch[3].Ack(), "settled once")
	again := map[string]uint64{}
	for len(again) < 2 {
		batch, err := c.NextBatch(deadline(t), 10)
		require.NoError(t, err)
		for _, m := range batch {
			again[string(m.Data)] = m.Delivered
			require.NoError(t, m.Ack())
		}
	}
	require.Equal(t, map[string]uint64{"again": 2, "given back": 2}, again)
}

// What a closed consumer held and did not hand out goes to the next one at once, not after the server's 30 s.
func TestSubmitCloseGivesBack(t *testing.T) {
	_, b := start(t)
	first := submitConsumer(t, b)
	publish(t, b, "ax.submit.email", numbers(50)...)
	got, err := first.NextBatch(deadline(t), 1)
	require.NoError(t, err)
	require.NoError(t, got[0].Ack())
	first.Close()
	_, err = first.NextBatch(context.Background(), 1)
	require.ErrorIs(t, err, natsbus.ErrClosed)

	begun := time.Now()
	rest, _ := take(t, submitConsumer(t, b), 49, 100)
	require.ElementsMatch(t, numbers(50)[1:], dataOf(rest))
	require.Less(t, time.Since(begun), 10*time.Second)
}

func TestSubmitNextBatchEndsWithItsContext(t *testing.T) {
	_, b := start(t)
	c := submitConsumer(t, b)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := c.NextBatch(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
}

func TestSubmitConsumersShare(t *testing.T) {
	server, b := start(t)
	c1, c2 := submitConsumer(t, b), submitConsumer(t, connect(t, server))
	publish(t, b, "ax.submit.email", numbers(200)...)
	var mu sync.Mutex
	var got []string
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range []*natsbus.SubmitConsumer{c1, c2} {
		wg.Go(func() {
			for {
				batch, err := c.NextBatch(ctx, 10)
				if err != nil {
					return
				}
				mu.Lock()
				for _, m := range batch {
					_ = m.Ack()
					got = append(got, string(m.Data))
				}
				if len(got) >= 200 {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.ElementsMatch(t, numbers(200), got)
}

// A consumer that nobody reads from holds a bounded part of a large backlog: the rest stays with the server.
func TestSubmitHoldsABoundedNumberOfBytes(t *testing.T) {
	_, b := start(t)
	p := publisher(t, b, natsbus.PublisherOptions{InFlight: 20})
	msgs := make([]natsbus.Msg, 100)
	for i := range msgs {
		msgs[i] = natsbus.Msg{Subject: "ax.submit.email", Data: make([]byte, 512<<10)}
	}
	for _, err := range p.Publish(deadline(t), msgs) {
		require.NoError(t, err)
	}
	c := submitConsumer(t, b)
	ackPending := func() int {
		consumer, err := b.JS().Consumer(deadline(t), events.StreamSubmit, "submitter")
		require.NoError(t, err)
		return consumer.CachedInfo().NumAckPending
	}
	stacktest.Eventually(t, patience, "the buffer is full", func() bool { return ackPending() >= 32 })
	require.Never(t, func() bool { return ackPending() > 50 }, time.Second, 50*time.Millisecond, "16 MiB and a pull of 8 MiB")
	batch, err := c.NextBatch(deadline(t), 1000)
	require.NoError(t, err)
	require.LessOrEqual(t, len(batch), 17, "and a batch ends at 8 MiB")
	for _, m := range batch {
		require.NoError(t, m.Ack())
	}
	take(t, c, 100-len(batch), 1000)
}

// 5,000 messages through a restart, a deleted consumer and a deleted stream's comeback: each arrives at least once.
func TestSubmitSurvives(t *testing.T) {
	for name, disturb := range map[string]func(t *testing.T, restart func(), b *natsbus.Bus){
		"restart": func(_ *testing.T, restart func(), _ *natsbus.Bus) { restart() },
		"deleted consumer": func(t *testing.T, _ func(), b *natsbus.Bus) {
			require.NoError(t, b.JS().DeleteConsumer(deadline(t), events.StreamSubmit, "submitter"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, b := start(t, func(o *natsbus.Options) { o.SubmitAckWait = 3 * time.Second })
			c := submitConsumer(t, b)
			p := publisher(t, connect(t, server), natsbus.PublisherOptions{AckTimeout: 500 * time.Millisecond})
			const total = 5000
			var wg sync.WaitGroup
			half := make(chan struct{})
			wg.Go(func() {
				for at := 0; at < total; at += 50 {
					msgs := make([]natsbus.Msg, 50)
					for i := range msgs {
						msgs[i] = natsbus.Msg{Subject: "ax.submit.email", Data: fmt.Append(nil, at+i), ID: fmt.Sprint(at + i)}
					}
					for _, err := range p.Publish(deadline(t), msgs) {
						if err != nil {
							t.Error(err)
						}
					}
					if at == total/2 {
						close(half)
					}
				}
			})
			seen := map[string]bool{}
			disturbed := false
			for len(seen) < total {
				batch, err := c.NextBatch(deadline(t), 200)
				require.NoError(t, err, "%d of %d", len(seen), total)
				for _, m := range batch {
					_ = m.Ack() // may fail while disconnected: then it comes again
					seen[string(m.Data)] = true
				}
				select {
				case <-half:
					if !disturbed {
						disturbed = true
						disturb(t, func() { require.NoError(t, server.Restart(deadline(t))) }, b)
					}
				default:
				}
			}
			wg.Wait()
			require.True(t, disturbed)
		})
	}
}

func TestSubmitSurvivesALostStore(t *testing.T) {
	server, b := start(t)
	c := submitConsumer(t, b)
	publish(t, b, "ax.submit.email", "before")
	take(t, c, 1, 10)
	require.NoError(t, server.Wipe(deadline(t)))
	p := publisher(t, b, natsbus.PublisherOptions{Deadline: patience})
	require.NoError(t, p.Publish(deadline(t), []natsbus.Msg{{Subject: "ax.submit.email", Data: []byte("after")}})[0],
		"the consumer made the stream again")
	got, _ := take(t, c, 1, 10)
	require.Equal(t, []string{"after"}, dataOf(got))
	require.Equal(t, uint64(1), got[0].Sequence)
}

func TestSubmitEndsWithTheBus(t *testing.T) {
	b := connect(t, stacktest.NATS(t))
	c := submitConsumer(t, b) // makes the streams
	b.Close()
	_, err := c.NextBatch(deadline(t), 1)
	require.ErrorIs(t, err, natsbus.ErrClosed)
}
