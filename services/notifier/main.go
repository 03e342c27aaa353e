// Command notifier publishes every change of every task on ax.event.<type>.<state> and keeps the dead letters.
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
	"github.com/ax-scheduler/ax/services/notifier/notify"
)

const service = "notifier"

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
	ordered, err := nats.Ordered(natsbus.OrderedOptions{})
	if err != nil {
		return err
	}
	p.OnStop("publisher", func(context.Context) error {
		ordered.Close()
		return nil
	})
	n := notify.New(notify.Config{
		SaveEvery: c.SaveEvery, IdleEvery: c.IdleEvery, SweepEvery: c.SweepEvery,
	}, store{db}, bus{nats, ordered}, p.Registry, p.Log)
	p.Go("lead", func(ctx context.Context) error {
		return lead.Run(ctx, db, lead.Options{
			Name: service, Owner: lead.Identity(), TTL: c.LockTTL, Log: p.Log, Note: n.Note, Registry: p.Registry,
		}, n.Lead)
	})
	return consumeRefusals(p, nats, n.Refusals())
}

// consumeRefusals runs the consumer of AX_DEAD, which all instances share.
func consumeRefusals(p *process.Process, nats *natsbus.Bus, r *notify.Refusals) error {
	subscriber, err := nats.WatermillSubscriber(natsbus.SubscriberOptions{Stream: events.StreamDead, Durable: service})
	if err != nil {
		return err
	}
	router, err := nats.NewRouter(natsbus.RouterOptions{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("refusals", events.SubjectDeadSubmit, subscriber, r.Handle)
	p.Go("refusals", router.Run)
	return nil
}

// store gives the notifier its view of the database.
type store struct{ *mongostore.Store }

func (s store) OpenStream(ctx context.Context, token []byte) (notify.Stream, error) {
	stream, err := s.Store.OpenStream(ctx, mongostore.StreamOptions{Token: token, Detail: true})
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// bus gives the notifier its view of NATS.
type bus struct {
	*natsbus.Bus
	ordered *natsbus.Ordered
}

// PublishInOrder keeps the order of each task: the subject of the CloudEvent is the task's id.
func (b bus) PublishInOrder(ctx context.Context, msgs []events.Msg) error {
	keys := make([]string, len(msgs))
	for i, m := range msgs {
		keys[i] = m.Header.Get(events.HeaderCESubject)
	}
	return b.ordered.PublishOrdered(ctx, keys, msgs)
}

// EventStream names a creation of AX_EVENT by its time.
func (b bus) EventStream(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	created, err := b.StreamCreated(ctx, events.StreamEvent)
	return created.UTC().Format(time.RFC3339Nano), err
}
