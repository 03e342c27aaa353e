package natsbus

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/ax-scheduler/ax/pkg/events"
)

// PublishCancel tells all workers of a cancellation, over core NATS: who is not listening at the moment learns of it from
// the heartbeat.
func (b *Bus) PublishCancel(c events.Cancel) error {
	data, err := events.Encode(c)
	if err != nil {
		return fmt.Errorf("publish cancel: %w", err)
	}
	if err := b.nc.Publish(events.SubjectCancel, data); err != nil {
		return fmt.Errorf("publish cancel: %w", err)
	}
	return nil
}

// SubscribeCancel calls fn for each cancellation, one after the other, until stop is called or the bus closed. What is no
// cancellation is left out.
func (b *Bus) SubscribeCancel(fn func(events.Cancel)) (stop func(), err error) {
	sub, err := b.nc.Subscribe(events.SubjectCancel, func(m *nats.Msg) {
		var c events.Cancel
		if err := json.Unmarshal(m.Data, &c); err != nil || c.ID == "" {
			b.log.Warn("message on "+events.SubjectCancel+" is no cancellation, left out", slog.Any("err", err))
			return
		}
		fn(c)
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to cancellations: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed already
}

// Answer sends the answer to a submission to the subject that its header Ax-Reply-To names, over core NATS. A name that
// is no plain subject, or one that belongs to ax or to NATS, is refused: an answer must not become a submission.
func (b *Bus) Answer(replyTo string, a events.Answer) error {
	if !events.Answerable(replyTo) {
		return fmt.Errorf("answer to %q: give a subject without wildcards and white space that begins neither with ax. nor with $", replyTo)
	}
	data, err := events.Encode(a)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if err := b.nc.Publish(replyTo, data); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}
