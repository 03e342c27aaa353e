package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Options say where ax is.
type Options struct {
	// NATSURL of the servers, separated by commas. Default "nats://127.0.0.1:4222".
	NATSURL string
	// Name of this program, shown by NATS. Default "ax-client".
	Name string
	// MongoURI and Database are needed by InsertTx only: the deployment that ax itself uses. Database defaults to "ax".
	MongoURI string
	Database string
	// By names who asks in the history of the tasks that are cancelled or re-run. Default: Name.
	By string
	// Log receives disconnects, and what goes wrong with subscriptions. Default: nothing is logged.
	Log *slog.Logger
}

const (
	defaultNATSURL  = "nats://127.0.0.1:4222"
	defaultName     = "ax-client"
	defaultDatabase = "ax"
)

// Client is a connection to ax. It is safe for concurrent use.
type Client struct {
	opts      Options
	bus       *natsbus.Bus
	publisher *natsbus.Publisher
	ends      *ends

	mu     sync.Mutex
	store  *mongostore.Store // opened by the first InsertTx
	closed bool
}

// ErrClosed is returned by calls after Close.
var ErrClosed = errors.New("the client is closed")

// Connect connects to NATS and fails when no server answers. From then on the connection is renewed whenever it breaks; calls
// made meanwhile fail with code unavailable.
func Connect(opts Options) (*Client, error) {
	opts.NATSURL = cmp.Or(opts.NATSURL, defaultNATSURL)
	opts.Name = cmp.Or(opts.Name, defaultName)
	opts.Database = cmp.Or(opts.Database, defaultDatabase)
	opts.By = cmp.Or(opts.By, opts.Name)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	bus, err := natsbus.Connect(natsbus.Options{URL: opts.NATSURL, Name: opts.Name, Log: opts.Log})
	if err != nil {
		return nil, err
	}
	publisher, err := bus.Publisher(natsbus.PublisherOptions{Name: "submit", InFlight: publishWindow})
	if err != nil {
		bus.Close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return &Client{opts: opts, bus: bus, publisher: publisher, ends: newEnds(bus.NC())}, nil
}

// Close ends the connection. Waits and subscriptions end with it.
func (c *Client) Close() error {
	c.mu.Lock()
	store := c.store
	c.store, c.closed = nil, true
	c.mu.Unlock()
	c.ends.close()
	c.publisher.Close()
	c.bus.Close()
	if store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return store.Close(ctx)
}

// request asks the submitter.
func (c *Client) request(ctx context.Context, subject string, req, reply any) error {
	err := c.bus.Request(ctx, subject, req, reply)
	if errors.Is(err, nats.ErrConnectionClosed) { // only Close closes it
		return ErrClosed
	}
	return err
}

// Subscribe calls handler for each change of state that the options choose, at least once and in each task's order. It
// returns when every event from now on will be delivered; stop the subscription, or end ctx, to end it.
func (c *Client) Subscribe(ctx context.Context, opts events.SubscribeOptions, handler func(context.Context, events.Event) error) (*events.Subscription, error) {
	if opts.Log == nil {
		opts.Log = c.opts.Log
	}
	sub, err := events.Subscribe(ctx, c.bus.NC(), opts, handler)
	if errors.Is(err, nats.ErrConnectionClosed) {
		return nil, ErrClosed
	}
	return sub, err
}
