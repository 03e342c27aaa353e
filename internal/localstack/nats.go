package localstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
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
}

const (
	natsMaxStore = 2 << 30
	natsReady    = 20 * time.Second
	// natsSync bounds what a power failure may lose; the server's default is two minutes.
	natsSync = time.Second
)

// NATS is an embedded server with JetStream on disk, reached over TCP like any other.
type NATS struct {
	opts    NATSOptions
	dir     string
	scratch *scratch // nil when the folder is the caller's

	mu      sync.Mutex
	srv     *server.Server // nil while stopped
	port    int
	stopped bool
}

// StartNATS starts a server and returns when it takes connections.
func StartNATS(ctx context.Context, opts NATSOptions) (*NATS, error) {
	if opts.MaxStore == 0 {
		opts.MaxStore = natsMaxStore
	}
	n := &NATS{opts: opts, dir: opts.Dir, port: opts.Port}
	if n.dir == "" {
		var err error
		if n.scratch, err = newScratch(); err != nil {
			return nil, fmt.Errorf("start NATS: %w", err)
		}
		n.dir = n.scratch.path
	}
	if err := n.start(ctx); err != nil {
		n.Stop()
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	return n, nil
}

// URL is where clients connect. It stays the same across Restart and Wipe.
func (n *NATS) URL() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("nats://127.0.0.1:%d", n.port)
}

// Stop ends the server and deletes its store unless the folder is the caller's. It may be called twice.
func (n *NATS) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		return
	}
	n.stopped = true
	n.end()
	if n.scratch != nil {
		// A temporary folder that cannot be removed now is removed by a later run.
		_ = n.scratch.remove()
	}
}

// Down ends the server and keeps its store and port, for Restart: to clients, NATS is out of reach.
func (n *NATS) Down() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end()
}

// Restart stops the server if it runs and starts it again on the same store and port.
func (n *NATS) Restart(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end()
	if err := n.start(ctx); err != nil {
		return fmt.Errorf("restart NATS: %w", err)
	}
	return nil
}

// Wipe stops the server, deletes its store (all streams, consumers and messages) and starts it again on the same port.
func (n *NATS) Wipe() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end()
	if err := os.RemoveAll(filepath.Join(n.dir, server.JetStreamStoreDir)); err != nil {
		return fmt.Errorf("wipe NATS: %w", err)
	}
	if err := n.start(context.Background()); err != nil {
		return fmt.Errorf("wipe NATS: %w", err)
	}
	return nil
}

// end stops the server if it runs. The caller holds mu.
func (n *NATS) end() {
	if n.srv == nil {
		return
	}
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
	n.srv = nil
}

// start runs the server. The caller holds mu, or is the only one to know n.
func (n *NATS) start(ctx context.Context) error {
	if n.stopped {
		return errors.New("it was stopped for good")
	}
	port := n.port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "ax-local", Host: "127.0.0.1", Port: port,
		JetStream: true, StoreDir: n.dir, SyncInterval: natsSync,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: n.opts.MaxStore,
		NoSigs: true,
	})
	if err != nil {
		return err
	}
	log := &natsLog{tail: newTail(), fatal: make(chan struct{})}
	srv.SetLogger(log, false, false)
	srv.Start()
	if err := awaitNATS(ctx, srv, log); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return err
	}
	addr, ok := srv.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("unexpected address %v", srv.Addr())
	}
	n.srv, n.port = srv, addr.Port
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
