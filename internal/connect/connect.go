// Package connect opens what a service works with: it waits for the database and for NATS at the start, says on /readyz when
// either is out of reach later, and closes them in order at the end.
package connect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/process"
)

// setUpTimeout bounds one try to create indexes or streams. Indexes on a large collection take long to build.
const setUpTimeout = 5 * time.Minute

// Check refuses addresses of the database and of NATS that can never work: they are mistakes in the configuration and not
// something to wait for.
func Check(c process.WithNATS) error {
	err := CheckStore(c.Common)
	if bus := natsbus.CheckURL(c.NATSURL); bus != nil {
		err = errors.Join(err, fmt.Errorf("AX_NATS_URL is not allowed: %w", bus))
	}
	return err
}

// CheckStore is [Check] for a service that does without NATS.
func CheckStore(c process.Common) (err error) {
	if uri := mongostore.CheckURI(c.MongoURI); uri != nil {
		err = fmt.Errorf("AX_MONGO_URI is not allowed: %w", uri)
	}
	if name := mongostore.CheckDatabase(c.Database); name != nil {
		err = errors.Join(err, fmt.Errorf("AX_MONGO_DB: %w", name))
	}
	return err
}

// Store opens the database, trying until it answers or ctx ends, and creates missing indexes.
func Store(ctx context.Context, p *process.Process, service string, c process.Common) (*mongostore.Store, error) {
	var store *mongostore.Store
	err := p.Retry(ctx, "database", func(ctx context.Context) (err error) {
		store, err = mongostore.Open(ctx, mongostore.Options{URI: c.MongoURI, Database: c.Database, AppName: "ax-" + service, Log: p.Log})
		if err != nil {
			return fmt.Errorf("%w; start MongoDB there, or set AX_MONGO_URI", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	p.OnStop("database", store.Close)
	p.Ready("database", store.Ping)
	err = p.Retry(ctx, "indexes", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
		defer cancel()
		return store.EnsureIndexes(ctx)
	})
	if err != nil {
		return nil, err
	}
	announce(p, service, store)
	return store, nil
}

// Bus connects to NATS, trying until it answers or ctx ends, creates missing streams, and goes on making them again when
// they get lost while the process runs.
func Bus(ctx context.Context, p *process.Process, service string, c process.WithNATS) (*natsbus.Bus, error) {
	var bus *natsbus.Bus
	err := p.Retry(ctx, "NATS", func(context.Context) (err error) {
		bus, err = natsbus.Connect(natsbus.Options{URL: c.NATSURL, Name: "ax-" + service, Log: p.Log, Registry: p.Registry})
		return err
	})
	if err != nil {
		return nil, err
	}
	p.OnStop("NATS", func(context.Context) error {
		bus.Close()
		return nil
	})
	p.Ready("NATS", bus.Ready)
	err = p.Retry(ctx, "streams", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
		defer cancel()
		_, err := bus.EnsureStreams(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.Go("streams", func(ctx context.Context) error { return bus.WatchStreams(ctx, nil) })
	return bus, nil
}
