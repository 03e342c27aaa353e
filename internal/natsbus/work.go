package natsbus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	workAckWait   = 5 * time.Second
	workIdle      = time.Hour // a lane's consumer is dropped when no worker pulled for so long
	workPending   = 10_000
	workWaiting   = 4096        // pulls that may wait in a lane: one of each idle worker
	workHeartbeat = time.Second // an idle worker has a pull in each lane of each type, so these add up
	arrivalHandUp = 250 * time.Millisecond
)

func (b *Bus) workSource(taskType, channel, lane string) *source {
	return &source{bus: b, stream: events.StreamWork, beat: workHeartbeat, cfg: jetstream.ConsumerConfig{
		Durable: events.WorkConsumer(taskType, channel, lane), FilterSubject: events.SubjectWork(taskType, channel, lane),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: workAckWait, MaxDeliver: -1, MaxAckPending: workPending,
		MaxWaiting: workWaiting, InactiveThreshold: workIdle,
	}}
}

// EnsureWorkConsumer makes the consumer that the workers of a lane share, if it is not there.
func (b *Bus) EnsureWorkConsumer(ctx context.Context, taskType, channel, lane string) error {
	_, err := b.workSource(taskType, channel, lane).ensure(ctx)
	return err
}

// LaneInfo tells what lies in a lane. A lane whose consumer (or whose stream) is missing does not exist; Pending is then
// what the stream holds for it.
func (b *Bus) LaneInfo(ctx context.Context, taskType, channel, lane string) (events.LaneInfo, error) {
	consumer, err := b.js.Consumer(ctx, events.StreamWork, events.WorkConsumer(taskType, channel, lane))
	switch {
	case err == nil:
		info := consumer.CachedInfo()
		return events.LaneInfo{Exists: true, Pending: info.NumPending, AckPending: uint64(info.NumAckPending)}, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		b.streamMissing()
		return events.LaneInfo{}, nil
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return events.LaneInfo{}, fmt.Errorf("lane info: %w", err)
	}
	subject := events.SubjectWork(taskType, channel, lane)
	stream, err := b.js.Stream(ctx, events.StreamWork)
	if err == nil {
		var info *jetstream.StreamInfo
		if info, err = stream.Info(ctx, jetstream.WithSubjectFilter(subject)); err == nil {
			return events.LaneInfo{Pending: info.State.Subjects[subject]}, nil
		}
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return events.LaneInfo{}, nil
	}
	return events.LaneInfo{}, fmt.Errorf("lane info: %w", err)
}

// Lane receives the signals of one type, channel and lane for one worker. Its consumer is made when it is first needed
// and whenever it is gone.
type Lane struct {
	source   *source
	arrivals chan Message
	armed    chan int
	asking   atomic.Bool // signals are asked for that have not come
	start    sync.Once
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// Lane makes a receiver; nothing is asked of the server yet. Close it before the bus.
func (b *Bus) Lane(taskType, channel, lane string) *Lane {
	l := &Lane{source: b.workSource(taskType, channel, lane), arrivals: make(chan Message), armed: make(chan int, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// FetchNoWait returns up to n signals that are there now, perhaps none. It takes one round trip, and at most a second.
// After an error the next call looks the consumer up; errors are the bus's, so a worker only pauses. Signals that were
// received before an error are returned with it.
func (l *Lane) FetchNoWait(ctx context.Context, n int) ([]Message, error) {
	if n < 1 {
		return nil, nil
	}
	consumer, err := l.source.ensure(ctx)
	if err != nil {
		return nil, err
	}
	batch, err := consumer.FetchNoWait(n)
	if err != nil {
		return nil, l.source.failed(err)
	}
	var got []Message
	for msg := range batch.Messages() {
		if m, ok := received(msg); ok {
			got = append(got, m)
		}
	}
	return got, l.source.failed(batch.Error())
}

// Listen asks the server for the lane's next signals, n of them, which then come from Arrivals as they are published. It
// returns at once; calls while signals are asked for change nothing. An idle worker calls it after FetchNoWait brought nothing.
// Each request costs the server about as much as a signal does, so a worker with many free slots asks for several.
func (l *Lane) Listen(n int) {
	l.start.Do(func() { l.wg.Go(l.listen) })
	if n > 0 && l.asking.CompareAndSwap(false, true) {
		l.armed <- n // has room: whoever clears the flag took the former one out before
	}
}

// Asking reports whether signals that Listen asked for are still to come. While it does, none wait with the server.
func (l *Lane) Asking() bool { return l.asking.Load() }

// Arrivals is the channel of the signals that Listen asked for. One that is not taken within a quarter of a second goes
// back to the server, for another worker.
func (l *Lane) Arrivals() <-chan Message { return l.arrivals }

func (l *Lane) listen() {
	for {
		var left int
		select {
		case left = <-l.armed:
		case <-l.ctx.Done():
			return
		}
		some, cancel := context.WithCancel(l.ctx)
		l.source.run(some, func() int { return left }, 0, func(msg jetstream.Msg) bool {
			if left--; left == 0 {
				defer cancel()
				l.asking.Store(false)
			}
			m, ok := received(msg)
			return !ok || l.handUp(m)
		})
		cancel()
	}
}

func (l *Lane) handUp(m Message) bool {
	timer := time.NewTimer(arrivalHandUp)
	defer timer.Stop()
	select {
	case l.arrivals <- m:
		return true
	case <-timer.C:
	case <-l.ctx.Done():
	}
	return false
}

// Close stops listening.
func (l *Lane) Close() {
	l.cancel()
	l.wg.Wait()
}
