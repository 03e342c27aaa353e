package localstack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSProcess is NATS in a process of its own (test/natsd), so that it can be killed as a machine would, and its use of the
// processor told from its clients'.
type NATSProcess struct {
	path, dir, port string
	child           *child
}

// StartNATSProcess starts the program natsd on a folder, which is kept, and returns when it takes connections.
func StartNATSProcess(ctx context.Context, path, dir string) (*NATSProcess, error) {
	n := &NATSProcess{path: path, dir: dir, port: "0"}
	return n, n.Start(ctx)
}

// Start runs it again on the same folder and port.
func (n *NATSProcess) Start(ctx context.Context) error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return fmt.Errorf("start natsd: %w", err)
	}
	c, err := startChild("natsd", []string{n.path, "-dir", n.dir, "-port", n.port}, nil)
	if err != nil {
		return fmt.Errorf("%w; `make build` makes it", err)
	}
	n.child = c
	ctx, cancel := context.WithTimeout(ctx, natsReady)
	defer cancel()
	const mark = "listening on nats://127.0.0.1:"
	line, err := c.waitOutput(ctx, func(line string) bool { return strings.HasPrefix(line, mark) })
	if err != nil {
		return err
	}
	n.port = strings.TrimPrefix(line, mark)
	return nil
}

// URL is where clients connect. It stays the same.
func (n *NATSProcess) URL() string { return "nats://127.0.0.1:" + n.port }

// PID is the process id.
func (n *NATSProcess) PID() int { return n.child.cmd.Process.Pid }

// Kill ends the process at once, as kill -9 does.
func (n *NATSProcess) Kill() error { return n.child.stop(0) }

// Stop asks the process to end and kills it when it has not ended within grace.
func (n *NATSProcess) Stop(grace time.Duration) error { return n.child.stop(grace) }

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (n *NATSProcess) Signal(sig syscall.Signal) error { return n.child.signal(sig) }

// Wipe kills the process, deletes all streams, consumers and messages, and starts it again.
func (n *NATSProcess) Wipe(ctx context.Context) error {
	if err := n.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(n.dir, server.JetStreamStoreDir)); err != nil {
		return fmt.Errorf("wipe NATS: %w", err)
	}
	return n.Start(ctx)
}
