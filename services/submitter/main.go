// Command submitter stores what is submitted as tasks and answers requests about them.
package main

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/services/submitter/submit"
)

const service = "submitter"

// replyHeaders is kept free in a reply for its headers.
const replyHeaders = 16 << 10

// What stopping may take at most: requests on their way, then inserts on their way.
const (
	drainTimeout = 2 * time.Second
	grace        = 3 * time.Second
)

func main() {
	var c Config
	process.Main(service, &c, func(ctx context.Context, p *process.Process) error { return setUp(ctx, p, c) })
}

func setUp(ctx context.Context, p *process.Process, c Config) error {
	store, err := connect.Store(ctx, p, service, c.Common)
	if err != nil {
		return err
	}
	nats, err := connect.Bus(ctx, p, service, c.WithNATS)
	if err != nil {
		return err
	}
	dead, err := nats.Publisher(natsbus.PublisherOptions{Name: "dead"})
	if err != nil {
		return err
	}
	p.OnStop("publisher", func(context.Context) error {
		dead.Close()
		return nil
	})
	var source *natsbus.SubmitConsumer
	err = p.Retry(ctx, "submissions", func(ctx context.Context) (err error) {
		source, err = nats.SubmitConsumer(ctx)
		return err
	})
	if err != nil {
		return err
	}
	p.OnStop("submissions", func(context.Context) error {
		source.Close() // again, unless the start fails below
		return nil
	})

	s := submit.New(submit.Config{Batch: c.Batch, Grace: grace}, store, source, bus{nats, dead}, p.Registry, p.Log)
	p.Ready("intake", s.Check)
	api := submit.NewAPI(s, store, int(nats.NC().MaxPayload())-replyHeaders)
	var endpoints []natsbus.Endpoint
	for subject, handle := range api.Endpoints() {
		endpoints = append(endpoints, natsbus.Endpoint{Subject: subject, Handle: handle})
	}
	requests, err := nats.Serve(natsbus.ServiceOptions{Name: "ax-submitter", Workers: c.Requests}, endpoints...)
	if err != nil {
		return err
	}
	p.Go("intake", func(ctx context.Context) error {
		// Requests end before the intake that stores their tasks.
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		drained := make(chan error, 1)
		go func() {
			<-ctx.Done()
			drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
			defer cancel()
			drained <- requests.Stop(drain)
			stop()
		}()
		if err := s.Run(running); err != nil {
			return err
		}
		return <-drained
	})
	return nil
}

// bus gives the submitter its view of NATS.
type bus struct {
	*natsbus.Bus
	dead *natsbus.Publisher
}

// Publish stores messages in AX_DEAD.
func (b bus) Publish(ctx context.Context, msgs []natsbus.Msg) []error {
	return b.dead.Publish(ctx, msgs)
}
