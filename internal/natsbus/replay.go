package natsbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Held is what the event stream held while it was read. Its times are those of the NATS server.
type Held struct {
	Created time.Time // of the stream
	// Dropped says that the oldest events were dropped, by age or by size; First is then when the oldest one left was stored.
	Dropped bool
	First   time.Time
	Now     time.Time // when this was so
}

const (
	replayBatch   = 500
	replayWait    = 2 * time.Second
	replaySilence = 5 // fetches without a message before the reading is given up
	replayIdle    = time.Minute
)

// ReplayEvents hands what AX_EVENT holds at this moment to visit, oldest first, each message once and none left out; of one task type
// only unless that is empty. It takes nothing from the stream, and no position of anybody moves. The messages need no
// acknowledgement. An error means that some were not seen.
func (b *Bus) ReplayEvents(ctx context.Context, taskType string, visit func(Message) error) (Held, error) {
	stream, err := b.js.Stream(ctx, events.StreamEvent)
	if err != nil {
		return Held{}, fmt.Errorf("stream %s: %w", events.StreamEvent, err)
	}
	info := stream.CachedInfo()
	cfg := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true,
		InactiveThreshold: replayIdle}
	if taskType != "" {
		cfg.FilterSubject = events.SubjectEvent(taskType, "*")
	}
	consumer, err := stream.CreateConsumer(ctx, cfg)
	if err != nil {
		return Held{}, fmt.Errorf("read events: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) // else the server does when it was idle
	}()
	if consumer.CachedInfo().NumPending > 0 {
		if err := replayTo(ctx, consumer, info.State.LastSeq, visit); err != nil {
			return Held{}, err
		}
	}
	// Asked again: what was dropped meanwhile may not have been seen.
	if info, err = stream.Info(ctx); err != nil {
		return Held{}, fmt.Errorf("read events: %w", err)
	}
	return Held{Created: info.Created, Dropped: info.State.FirstSeq > 1, First: info.State.FirstTime, Now: info.TimeStamp}, nil
}

// replayTo reads until the last message is met, or nothing is left.
func replayTo(ctx context.Context, consumer jetstream.Consumer, last uint64, visit func(Message) error) error {
	expect, silent := uint64(1), 0
	for {
		batch, err := consumer.Fetch(replayBatch, jetstream.FetchMaxWait(replayWait))
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		got, end := false, false
		for msg := range batch.Messages() {
			if end { // what came later is not asked for; the batch must be emptied
				continue
			}
			meta, err := msg.Metadata()
			if err != nil {
				return fmt.Errorf("read events: %w", err)
			}
			if meta.Sequence.Consumer != expect {
				return fmt.Errorf("read events: delivery %d came where %d was due: NATS was out of reach meanwhile", meta.Sequence.Consumer, expect)
			}
			expect, got = expect+1, true
			if meta.Sequence.Stream > last {
				end = true
				continue
			}
			m, _ := received(msg)
			if err := visit(m); err != nil {
				return err
			}
			end = meta.Sequence.Stream == last || meta.NumPending == 0
		}
		switch err := batch.Error(); {
		case end:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, jetstream.ErrNoMessages) && !errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("read events: %w", err)
		case got:
			silent = 0
		default:
			if silent++; silent == replaySilence {
				return fmt.Errorf("read events: NATS sends no more, though message %d is still to come", last)
			}
		}
	}
}
