package natsbus

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	submitDurable = "submitter"
	// submitPending bounds what all submitters together hold; far above what one holds.
	submitPending = 20_000
	// One submitter holds at most these many messages and bytes, besides one pull of submitPullBytes.
	submitBuffer      = 2000
	submitBufferBytes = 16 * mib
	submitPull        = 500
	submitPullBytes   = 8 * mib
	// batchBytes ends a batch; by one message it may be exceeded.
	batchBytes = 8 * mib
)

// SubmitConsumer receives submissions. All submitters share one durable consumer, so each message goes to one of them.
type SubmitConsumer struct {
	source *source
	buffer chan Message
	bytes  *semaphore.Weighted
	cancel context.CancelFunc
	closed <-chan struct{}
	wg     sync.WaitGroup
}

// SubmitConsumer makes the consumer and begins to receive. A message that is not settled within Options.SubmitAckWait is
// delivered again, without limit. Close it before the bus.
func (b *Bus) SubmitConsumer(ctx context.Context) (*SubmitConsumer, error) {
	s := &source{bus: b, stream: events.StreamSubmit, cfg: jetstream.ConsumerConfig{
		Durable: submitDurable, Description: "All submitters.", AckPolicy: jetstream.AckExplicitPolicy, AckWait: b.opts.SubmitAckWait,
		MaxDeliver: -1, MaxAckPending: submitPending,
	}}
	if _, err := s.ensure(ctx); err != nil {
		return nil, fmt.Errorf("receive submissions: %w", err)
	}
	running, cancel := context.WithCancel(context.Background())
	c := &SubmitConsumer{
		source: s, buffer: make(chan Message, submitBuffer), bytes: semaphore.NewWeighted(submitBufferBytes),
		cancel: cancel, closed: running.Done(),
	}
	c.wg.Go(func() {
		defer cancel() // the bus was closed first: NextBatch must not wait for ever
		s.run(running, func() int { return submitPull }, submitPullBytes, func(msg jetstream.Msg) bool { return c.put(running, msg) })
	})
	return c, nil
}

// put waits until there is room: the messages behind stay with the server.
func (c *SubmitConsumer) put(ctx context.Context, msg jetstream.Msg) bool {
	m, ok := received(msg)
	if !ok {
		return true
	}
	if c.bytes.Acquire(ctx, weight(m)) != nil {
		return false
	}
	select {
	case c.buffer <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

func weight(m Message) int64 { return min(int64(len(m.Data))+1, submitBufferBytes) }

// NextBatch waits for one message and returns it with all others that have arrived, up to most, in their order. A batch
// ends early when it exceeds 8 MiB. The error is that of ctx, or [ErrClosed].
func (c *SubmitConsumer) NextBatch(ctx context.Context, most int) ([]Message, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var batch []Message
	var size int64
	take := func(m Message) {
		c.bytes.Release(weight(m))
		size += weight(m)
		batch = append(batch, m)
	}
	select {
	case m := <-c.buffer:
		take(m)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.closed:
		return nil, ErrClosed
	}
	for len(batch) < most && size < batchBytes {
		select {
		case m := <-c.buffer:
			take(m)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// Close stops receiving, which takes up to a second, and gives back what NextBatch has not returned. Messages it has returned can still be settled
// until the bus is closed.
func (c *SubmitConsumer) Close() {
	c.cancel()
	c.wg.Wait()
	for {
		select {
		case m := <-c.buffer:
			_ = m.NakWithDelay(0) // lost: it is delivered again after its wait
		default:
			return
		}
	}
}
