package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
)

// Options say where NATS is and how ax uses it.
type Options struct {
	// URL of the servers, separated by commas, e.g. "nats://127.0.0.1:4222".
	URL string
	// Name of this process, shown by NATS; e.g. "ax-submitter".
	Name string
	// Log gets disconnects, reconnects and refusals. Nil: nothing is logged.
	Log *slog.Logger
	// Registry gets the metrics ax_bus_*; nil: they are counted and not exported.
	Registry prometheus.Registerer
	// Sizes of the streams on disk.
	Sizes Sizes
	// Replicas of each stream, 1 to 5; default 1. 0 leaves an existing stream as it is.
	Replicas int
	// SubmitAckWait is after how long a submission that no submitter settled is delivered again; default 30 s. So late may
	// be what was on its way when NATS, a connection or a submitter died.
	SubmitAckWait time.Duration
	// ConnectTimeout bounds each attempt to connect; default 2 s.
	ConnectTimeout time.Duration
}

const (
	reconnectWait = 250 * time.Millisecond
	pingInterval  = 20 * time.Second
	// apiTimeout bounds a request to JetStream whose context has no deadline.
	apiTimeout = 5 * time.Second
)

// Bus is a connection to NATS. It is safe for concurrent use.
type Bus struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	log     *slog.Logger
	opts    Options
	metrics *metrics

	streams streamState

	mu           sync.Mutex
	reconnected  chan struct{} // closed and replaced at each reconnect
	disconnected chan struct{} // likewise
}

// Connect connects once and fails when no server answers; from then on the connection is renewed for ever. While it is
// down, publishing fails at once instead of piling up.
func Connect(opts Options) (*Bus, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.ConnectTimeout = cmp.Or(opts.ConnectTimeout, 2*time.Second)
	opts.SubmitAckWait = cmp.Or(opts.SubmitAckWait, 30*time.Second)
	opts.Sizes = opts.Sizes.withDefaults()
	b := &Bus{
		log: opts.Log.With(slog.String("component", "natsbus")), opts: opts, metrics: newMetrics(opts.Registry),
		reconnected: make(chan struct{}), disconnected: make(chan struct{}),
	}
	b.streams.missing = make(chan struct{}, 1)
	nc, err := nats.Connect(opts.URL,
		nats.Name(opts.Name), nats.Timeout(opts.ConnectTimeout), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait, 2*reconnectWait), nats.PingInterval(pingInterval),
		// What is published while disconnected would be sent whenever the server comes back, long after the caller was
		// told that it failed. Without a buffer the outcome is known.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(b.onDisconnect), nats.ReconnectHandler(b.onReconnect), nats.ErrorHandler(b.onError),
		nats.ClosedHandler(func(*nats.Conn) { b.announce(&b.reconnected) }), // wakes whoever waits for the connection
	)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w; start NATS with JetStream there, or set AX_NATS_URL", redact(opts.URL), err)
	}
	b.nc = nc
	if b.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(apiTimeout)); err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return b, nil
}

// CheckURL tells whether an address can work at all: one or more of the form nats://host:port, separated by commas. Its error
// holds nothing of the address, which may be a secret.
func CheckURL(urls string) error {
	parts := strings.Split(urls, ",")
	for i, part := range parts {
		part = strings.TrimSpace(part)
		if !strings.Contains(part, "://") {
			part = "nats://" + part
		}
		u, err := url.Parse(part)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return fmt.Errorf("address %d of %d is not of the form nats://host:port", i+1, len(parts))
		}
	}
	return nil
}

// redact leaves user names and passwords out of URLs.
func redact(urls string) string {
	parts := strings.Split(urls, ",")
	for i, part := range parts {
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil {
			parts[i] = "(an address that is no URL)"
			continue
		}
		u.User = nil
		parts[i] = u.String()
	}
	return strings.Join(parts, ",")
}

func (b *Bus) onDisconnect(_ *nats.Conn, err error) {
	if err != nil { // nil: closed by us
		b.log.Warn("NATS is out of reach, reconnecting", slog.Any("err", err))
	}
	b.announce(&b.disconnected)
}

func (b *Bus) onReconnect(nc *nats.Conn) {
	b.metrics.reconnects.Inc()
	b.log.Info("NATS is back", slog.String("server", nc.ConnectedAddr()))
	b.announce(&b.reconnected)
}

func (b *Bus) announce(event *chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(*event)
	*event = make(chan struct{})
}

// onError gets what has no caller to return to. A refused permission shows nowhere else: the call itself only times out.
func (b *Bus) onError(_ *nats.Conn, sub *nats.Subscription, err error) {
	attrs := []any{slog.Any("err", err)}
	if sub != nil {
		attrs = append(attrs, slog.String("subject", sub.Subject))
	}
	if errors.Is(err, nats.ErrSlowConsumer) {
		b.metrics.slow.Inc()
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		b.log.Debug("connection error", attrs...) // the disconnect that follows is logged
		return
	}
	b.log.Error("NATS refused or dropped something", attrs...)
}

// nextReconnect returns a channel that is closed at the next reconnect.
func (b *Bus) nextReconnect() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reconnected
}

// whileConnected bounds a few requests to the server by apiTimeout and by the connection: an answer that was on its way
// when the connection broke never comes. Then the cause of the context is ErrDisconnected.
func (b *Bus) whileConnected(ctx context.Context) (context.Context, context.CancelFunc) {
	b.mu.Lock()
	disconnected := b.disconnected
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	ctx, fail := context.WithCancelCause(ctx)
	if !b.nc.IsConnected() {
		fail(ErrDisconnected)
		return ctx, cancel
	}
	released := make(chan struct{})
	go func() {
		select {
		case <-disconnected:
			fail(ErrDisconnected)
		case <-ctx.Done():
		}
		close(released)
	}()
	return ctx, func() {
		cancel()
		<-released
	}
}

// cause is err, or why the context of whileConnected ended if that is the reason.
func cause(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrDisconnected) {
		return ErrDisconnected
	}
	return err
}

// NC is the connection itself, for pkg/events and tests.
func (b *Bus) NC() *nats.Conn { return b.nc }

// JS is JetStream on this connection.
func (b *Bus) JS() jetstream.JetStream { return b.js }

// Ready fails while NATS does not answer. It asks the server, so give ctx a deadline.
func (b *Bus) Ready(ctx context.Context) error {
	if !b.nc.IsConnected() {
		return fmt.Errorf("NATS at %s is out of reach", redact(b.opts.URL))
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, apiTimeout)
		defer cancel()
	}
	if err := b.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("NATS does not answer: %w", err)
	}
	return nil
}

// Close flushes what was sent (acknowledgements above all) for up to a second and closes the connection. Consumers,
// services and publishers should be stopped before.
func (b *Bus) Close() {
	if b.nc.IsConnected() {
		_ = b.nc.FlushTimeout(time.Second) // what cannot be flushed now is delivered again later
	}
	b.nc.Close()
}

// awaitConnection waits while the connection is down; false when ctx ended or the bus was closed.
func (b *Bus) awaitConnection(ctx context.Context) bool {
	for ctx.Err() == nil && !b.nc.IsClosed() {
		again := b.nextReconnect()
		if b.nc.IsConnected() {
			return true
		}
		select {
		case <-again:
		case <-ctx.Done():
		}
	}
	return false
}
