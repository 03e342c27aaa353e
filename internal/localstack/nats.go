package localstack

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSOptions says how the embedded NATS is run.
type NATSOptions struct {
	// Dir holds the streams and is kept. Empty: a temporary folder that Stop deletes.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// MaxStore bounds the bytes of all streams on disk; 0 means 2 GiB.
	MaxStore int64
	// NoJetStream leaves out what ax cannot do without, as an operator may.
	NoJetStream bool
}

const (
	natsMaxStore = 2 << 30
	natsReady    = 20 * time.Second
	// natsSync bounds what a power failure may lose; the server's default is two minutes.
	natsSync = time.Second
)

// NATS is an embedded server with JetStream on disk, reached over TCP like any other. In tests it runs as a [NATSProcess].
type NATS struct {
	srv     *server.Server
	url     string
	scratch *scratch // nil when the folder is the caller's
	stop    sync.Once
}

// StartNATS starts a server and returns when it takes connections.
func StartNATS(ctx context.Context, opts NATSOptions) (*NATS, error) {
	n := &NATS{}
	if opts.Dir == "" {
		var err error
		if n.scratch, err = newScratch(); err != nil {
			return nil, fmt.Errorf("start NATS: %w", err)
		}
		opts.Dir = n.scratch.path
	}
	if err := n.start(ctx, opts); err != nil {
		n.Stop()
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	return n, nil
}

// URL is where clients connect.
func (n *NATS) URL() string { return n.url }

// Stop ends the server and deletes its store unless the folder is the caller's. It may be called twice.
func (n *NATS) Stop() {
	n.stop.Do(func() {
		if n.srv != nil {
			n.srv.Shutdown()
			n.srv.WaitForShutdown()
		}
		if n.scratch != nil {
			// A temporary folder that cannot be removed now is removed by a later run.
			_ = n.scratch.remove()
		}
	})
}

func (n *NATS) start(ctx context.Context, opts NATSOptions) (err error) {
	n.srv, err = server.NewServer(&server.Options{
		ServerName: "ax-local", Host: "127.0.0.1", Port: cmp.Or(opts.Port, server.RANDOM_PORT),
		JetStream: !opts.NoJetStream, StoreDir: opts.Dir, SyncInterval: natsSync,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: cmp.Or(opts.MaxStore, natsMaxStore),
		NoSigs: true,
	})
	if err != nil {
		return err
	}
	log := &natsLog{tail: newTail(), fatal: make(chan struct{})}
	n.srv.SetLogger(log, false, false)
	n.srv.Start()
	if err := awaitNATS(ctx, n.srv, log); err != nil {
		return err
	}
	addr, ok := n.srv.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("unexpected address %v", n.srv.Addr())
	}
	n.url = fmt.Sprintf("nats://127.0.0.1:%d", addr.Port)
	return nil
}

// awaitNATS returns when the server takes connections, or with the reason it gave for not doing so.
func awaitNATS(ctx context.Context, srv *server.Server, log *natsLog) error {
	ctx, cancel := context.WithTimeout(ctx, natsReady)
	defer cancel()
	for !srv.ReadyForConnections(20 * time.Millisecond) {
		select {
		case <-log.fatal:
			return fmt.Errorf("the server gave up: %s", log.tail)
		case <-ctx.Done():
			return fmt.Errorf("not ready for connections: %w; its last output:\n%s", context.Cause(ctx), log.tail)
		default:
		}
	}
	return nil
}

// natsLog keeps the server's complaints: a server that cannot start says why only in its log.
type natsLog struct {
	tail  *tail
	once  sync.Once
	fatal chan struct{}
}

func (l *natsLog) Noticef(string, ...any)         {}
func (l *natsLog) Debugf(string, ...any)          {}
func (l *natsLog) Tracef(string, ...any)          {}
func (l *natsLog) Warnf(format string, v ...any)  { fmt.Fprintf(l.tail, format+"\n", v...) }
func (l *natsLog) Errorf(format string, v ...any) { fmt.Fprintf(l.tail, format+"\n", v...) }
func (l *natsLog) Fatalf(format string, v ...any) {
	fmt.Fprintf(l.tail, format+"\n", v...)
	l.once.Do(func() { close(l.fatal) })
}
