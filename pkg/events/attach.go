package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// attach gives the subscription a consumer that begins with the oldest event not settled yet.
func (s *Subscription) attach(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, StreamEvent)
	if err != nil {
		return nil, err
	}
	if s.meet(stream.CachedInfo()) && s.opts.Durable != "" {
		stored, err := s.stored(ctx, stream)
		if err != nil {
			return nil, err
		}
		if stored != nil {
			info := stored.CachedInfo()
			s.name = info.Name
			s.mu.Lock()
			s.next = info.AckFloor.Stream + 1
			s.mu.Unlock()
			// What a former subscription left unsettled would come later than newer events: then only a new consumer will do.
			if info.NumAckPending == 0 && sameFilters(info.Config, s.filters) {
				s.first = info.Delivered.Consumer + 1
				return stored, nil
			}
		}
	}
	return s.replace(ctx, stream)
}

// meet notes which stream this is, and reports whether it is the subscription's first. Positions in a former stream of the
// same name mean nothing in this one, and what was received from it cannot be acknowledged any more.
func (s *Subscription) meet(info *jetstream.StreamInfo) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.created.Equal(info.Created) {
		return false
	}
	first = s.created.IsZero()
	s.created = info.Created
	s.epoch++
	clear(s.open)
	switch {
	case first && !s.opts.Since.IsZero():
		s.next = 0
	case first && s.opts.Start == StartNew:
		s.next = info.State.LastSeq + 1
	default:
		s.next = 1
	}
	return first
}

// otherName is the second name of a durable consumer: a new consumer is made under the one while the old one is still
// there under the other, so that the position is never in nobody's hands. The sign is legal in no name of a caller.
func otherName(durable, name string) string {
	if name == durable {
		return durable + "~"
	}
	return durable
}

// stored finds the consumer that keeps the durable's position, nil when there is none. Of two, the newer one knows.
func (s *Subscription) stored(ctx context.Context, stream jetstream.Stream) (jetstream.Consumer, error) {
	var newest jetstream.Consumer
	for _, name := range []string{s.opts.Durable, otherName(s.opts.Durable, s.opts.Durable)} {
		consumer, err := stream.Consumer(ctx, name)
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound):
		case err != nil:
			return nil, err
		case newest == nil || consumer.CachedInfo().Created.After(newest.CachedInfo().Created):
			newest = consumer
		}
	}
	return newest, nil
}

// replace makes a new consumer, and then removes the one in use.
func (s *Subscription) replace(ctx context.Context, stream jetstream.Stream) (jetstream.Consumer, error) {
	cfg := jetstream.ConsumerConfig{
		FilterSubjects: s.filters, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: s.opts.MaxPending, DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
	}
	if s.opts.Durable != "" {
		cfg.Durable = otherName(s.opts.Durable, s.name)
		// Left over from a process that died in between. It must go: the server does not move an existing consumer.
		if err := stream.DeleteConsumer(ctx, cfg.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil, fmt.Errorf("remove an old consumer: %w", err)
		}
	} else {
		cfg.Name = "sub_" + NewToken()
		cfg.InactiveThreshold = idleConsumer
	}
	s.mu.Lock()
	cfg.OptStartSeq = s.resume()
	s.mu.Unlock()
	if cfg.OptStartSeq == 0 {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &s.opts.Since
	}
	consumer, err := stream.CreateConsumer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	old := s.name
	s.name, s.first = consumer.CachedInfo().Name, 1
	if old != "" {
		_ = stream.DeleteConsumer(ctx, old) // gone already, or found by the next replace, or dropped when idle
	}
	return consumer, nil
}

func sameFilters(cfg jetstream.ConsumerConfig, filters []string) bool {
	have := cfg.FilterSubjects
	if cfg.FilterSubject != "" {
		have = []string{cfg.FilterSubject}
	}
	return slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(filters)))
}

// leave ends the use of the consumer: one without a name is removed, one with a name keeps its position.
func (s *Subscription) leave() {
	if s.opts.Durable != "" {
		_ = s.js.Conn().FlushTimeout(time.Second) // the last acknowledgements should be out before the caller closes the connection
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.js.DeleteConsumer(ctx, StreamEvent, s.name) // else the server does after idleConsumer
}
