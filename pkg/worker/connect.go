package worker

import (
	"context"
	"errors"

	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

var _ store = (*mongostore.Store)(nil)

// natsBus is the bus on NATS.
type natsBus struct {
	*natsbus.Bus
	publisher *natsbus.Publisher
}

// connect makes the bus; it fails while NATS does not answer.
func (w *Worker) connect(ctx context.Context) (bus, error) {
	b, err := natsbus.Connect(natsbus.Options{URL: w.opts.NATSURL, Name: "ax-worker " + w.opts.ID, Log: w.opts.Log, Registry: w.opts.Registerer})
	if err != nil {
		return nil, err
	}
	p, err := b.Publisher(natsbus.PublisherOptions{Name: "rest of signals"})
	if err != nil {
		b.Close()
		return nil, err
	}
	return &natsBus{Bus: b, publisher: p}, nil
}

func (b *natsBus) Lane(taskType, channel, lane string) laneSource {
	return b.Bus.Lane(taskType, channel, lane)
}

func (b *natsBus) Signal(ctx context.Context, subject string, s events.Signal) error {
	return errors.Join(b.publisher.Publish(ctx, []events.Msg{{Subject: subject, Data: events.EncodeSignal(s)}})...)
}

func (b *natsBus) Close() {
	b.publisher.Close()
	b.Bus.Close()
}
