// Command dispatcher turns new and due tasks into signals for workers.
package main

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/lead"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/pkg/events"
	"github.com/ax-scheduler/ax/services/dispatcher/dispatch"
)

const service = "dispatcher"

func main() {
	var c Config
	process.Main(service, &c, func(ctx context.Context, p *process.Process) error { return setUp(ctx, p, c) })
}

func setUp(ctx context.Context, p *process.Process, c Config) error {
	db, err := connect.Store(ctx, p, service, c.Common)
	if err != nil {
		return err
	}
	nats, err := connect.Bus(ctx, p, service, c.WithNATS)
	if err != nil {
		return err
	}
	publisher, err := nats.Publisher(natsbus.PublisherOptions{Name: "signals"})
	if err != nil {
		return err
	}
	p.OnStop("publisher", func(context.Context) error {
		publisher.Close()
		return nil
	})
	d, err := dispatch.New(dispatch.Options{
		Store: store{db}, Bus: bus{nats, publisher}, Log: p.Log, Registry: p.Registry,
		Sweep: c.Sweep, Horizon: c.Horizon, Walk: c.Walk,
	})
	if err != nil {
		return err
	}
	p.Ready("signals", d.Ready)
	p.Go("lead", func(ctx context.Context) error {
		return lead.Run(ctx, db, lead.Options{
			Name: service, Owner: lead.Identity(), TTL: c.LockTTL, Log: p.Log, Registry: p.Registry,
		}, d.Lead)
	})
	return nil
}

// store gives the dispatcher its view of the database.
type store struct{ *mongostore.Store }

func (s store) OpenStream(ctx context.Context, token []byte) (dispatch.Stream, error) {
	stream, err := s.Store.OpenStream(ctx, mongostore.StreamOptions{Token: token})
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// bus gives the dispatcher its view of NATS.
type bus struct {
	*natsbus.Bus
	publisher *natsbus.Publisher
}

func (b bus) Publish(ctx context.Context, msgs []events.Msg) []error {
	return b.publisher.Publish(ctx, msgs)
}

// SignalStream names a creation of AX_WORK by its time.
func (b bus) SignalStream(ctx context.Context) (string, error) {
	created, err := b.StreamCreated(ctx, events.StreamWork)
	if err != nil {
		return "", err
	}
	return created.UTC().Format(time.RFC3339Nano), nil
}
