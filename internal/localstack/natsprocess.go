package localstack

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSProcessOptions say how NATS is run as a process. Dir must be given.
type NATSProcessOptions struct {
	NATSOptions
	Path string   // of a program whose main function is [NATSMain], such as test/natsd
	Env  []string // beside the environment of this process
}

// NATSProcess is NATS in a process of its own, so that it can be killed as a machine would, its use of the processor told from
// its clients', and its own data races from ours.
type NATSProcess struct {
	opts  NATSProcessOptions
	child *child
}

// natsDown is what NATS gets to stop in order, before it is killed.
const natsDown = 10 * time.Second

// StartNATSProcess starts NATS and returns when it takes connections. The process dies with this one.
func StartNATSProcess(ctx context.Context, opts NATSProcessOptions) (*NATSProcess, error) {
	n := &NATSProcess{opts: opts}
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

// listening begins the line with which NATS says its port.
const listening = "listening on nats://127.0.0.1:"

// Start runs it again on the same folder and port.
func (n *NATSProcess) Start(ctx context.Context) error {
	if err := os.MkdirAll(n.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("start natsd: %w", err)
	}
	c, err := startChild("natsd", append([]string{n.opts.Path}, n.opts.args()...), n.opts.Env)
	if err != nil {
		return fmt.Errorf("%w; `make build` makes it", err)
	}
	n.child = c
	ctx, cancel := context.WithTimeout(ctx, natsReady)
	defer cancel()
	line, err := c.waitOutput(ctx, func(line string) bool { return strings.HasPrefix(line, listening) })
	if err != nil {
		return errors.Join(err, n.Kill())
	}
	if n.opts.Port == 0 {
		n.opts.Port, err = strconv.Atoi(strings.TrimPrefix(line, listening))
	}
	return err
}

// URL is where clients connect. It stays the same.
func (n *NATSProcess) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.opts.Port) }

// PID is the process id.
func (n *NATSProcess) PID() int { return n.child.cmd.Process.Pid }

// Kill ends the process at once, as kill -9 does.
func (n *NATSProcess) Kill() error { return n.child.stop(0) }

// Stop asks the process to end and kills it when it has not ended within grace.
func (n *NATSProcess) Stop(grace time.Duration) error { return n.child.stop(grace) }

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (n *NATSProcess) Signal(sig syscall.Signal) error { return n.child.signal(sig) }

// Down stops it in order if it runs: to clients, NATS is out of reach until Start or Restart.
func (n *NATSProcess) Down() error { return n.Stop(natsDown) }

// SetMaxStore bounds the bytes of all streams on disk from the next start on; 0 is the default. What is there stays, and nothing is
// added to a store that is over its bound, as on a full disk.
func (n *NATSProcess) SetMaxStore(bytes int64) { n.opts.MaxStore = bytes }

// Restart stops it in order if it runs, and starts it again on the same store and port.
func (n *NATSProcess) Restart(ctx context.Context) error {
	if err := n.Down(); err != nil {
		return fmt.Errorf("restart NATS: %w", err)
	}
	return n.Start(ctx)
}

// Wipe kills the process if it runs, deletes all streams, consumers and messages, and starts it again.
func (n *NATSProcess) Wipe(ctx context.Context) error {
	if err := n.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(n.opts.Dir, server.JetStreamStoreDir)); err != nil {
		return fmt.Errorf("wipe NATS: %w", err)
	}
	return n.Start(ctx)
}

// args are the options as [NATSMain] takes them.
func (o NATSOptions) args() []string {
	return []string{"-dir", o.Dir, "-port", fmt.Sprint(o.Port), "-max-store", fmt.Sprint(o.MaxStore), fmt.Sprintf("-no-jetstream=%t", o.NoJetStream)}
}

// NATSMain is the main function of a program that is NATS, and nothing else, until it is told to end. It returns the exit code.
func NATSMain(args []string) int {
	var opts NATSOptions
	flags := flag.NewFlagSet("natsd", flag.ContinueOnError)
	flags.StringVar(&opts.Dir, "dir", "", "folder that holds the streams (kept); empty: a temporary one")
	flags.IntVar(&opts.Port, "port", 0, "port on 127.0.0.1; 0 takes a free one")
	flags.Int64Var(&opts.MaxStore, "max-store", 0, "bound on the bytes of all streams on disk; 0: 2 GiB")
	flags.BoolVar(&opts.NoJetStream, "no-jetstream", false, "no streams, as nats-server without -js")
	if flags.Parse(args) != nil { // it has said why
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := StartNATS(ctx, opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "natsd:", err)
		return 1
	}
	defer n.Stop()
	fmt.Println("listening on", n.URL())
	<-ctx.Done()
	return 0
}
