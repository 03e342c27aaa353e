package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

const defaultStopTimeout = 10 * time.Second

// Process is one running service. Its setup function registers loops, checks and what is to be closed.
type Process struct {
	// Log carries the component. Keys are constant: task_id, task_type, attempt, worker_id, err, component.
	Log *slog.Logger
	// Registry is served at /metrics. Names are ax_<service>_<what>_<unit>.
	Registry *prometheus.Registry

	service string
	addr    string
	health  health

	ctx  context.Context // ends when stopping begins
	fail context.CancelCauseFunc

	loops sync.WaitGroup

	mu      sync.Mutex
	running map[string]int // loops by name
	closers []closer
	errs    []error
}

type closer struct {
	name string
	fn   func(ctx context.Context) error
}

// Run runs a service until ctx ends, a loop fails or setup does. It binds the HTTP address first, so that an address
// in use is an error at once; then calls setup, whose loops start as they are registered; the process is ready when
// setup has returned and every check passes. Stopping: not ready any more, loops cancelled and waited for, OnStop
// functions from last to first, HTTP last, all within Common.StopTimeout. Nil means that it stopped in order because
// ctx ended.
func Run(ctx context.Context, service string, c Common, setup func(ctx context.Context, p *Process) error) error {
	return run(ctx, service, c, os.Stderr, setup)
}

func run(ctx context.Context, service string, c Common, out io.Writer, setup func(context.Context, *Process) error) error {
	p := &Process{
		Log:      newLogger(out, service, c),
		Registry: prometheus.NewRegistry(),
		service:  service,
		health:   health{waits: map[string]string{"start": "starting"}},
		running:  map[string]int{},
	}
	p.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	p.ctx, p.fail = context.WithCancelCause(ctx)
	defer p.fail(nil)

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(c.HTTPAddr, defaultHTTPAddr(service)))
	if err != nil {
		err = fmt.Errorf("serve health and metrics (AX_HTTP_ADDR): %w", err)
		p.Log.Error("cannot start", "err", err)
		return err
	}
	p.addr = listener.Addr().String()
	server := &http.Server{Handler: p.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			p.broke(fmt.Errorf("serve health and metrics: %w", err))
		}
	})
	p.Log.Info("starting", "version", Version, "http", p.addr, "pid", os.Getpid())

	if err := guard(func() error { return setup(p.ctx, p) }); err != nil {
		p.broke(fmt.Errorf("start: %w", err))
	} else {
		p.health.done("start")
		p.Log.Info("started")
		<-p.ctx.Done()
	}

	began := time.Now()
	p.health.wait("stop", "stopping")
	p.Log.Info("stopping", "reason", Redact(context.Cause(p.ctx).Error()))
	timeout := cmp.Or(c.StopTimeout, defaultStopTimeout)
	// Not derived from ctx, which has ended.
	stopCtx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	p.awaitLoops(timeout - timeout/4)
	p.close(stopCtx)
	if err := server.Shutdown(stopCtx); err != nil {
		server.Close()
	}
	serving.Wait()

	p.mu.Lock()
	defer p.mu.Unlock()
	err = errors.Join(p.errs...)
	if err != nil {
		p.Log.Error("stopped with errors", "err", Redact(err.Error()), "took", time.Since(began).Round(time.Millisecond))
		return err
	}
	p.Log.Info("stopped", "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// Addr is where health and metrics are served, with the port that was found when 0 was asked for.
func (p *Process) Addr() string { return p.addr }

// Go runs a loop until ctx ends. A loop that returns an error or panics before that brings the process down; one that
// returns nil has done its work.
func (p *Process) Go(name string, loop func(ctx context.Context) error) {
	p.count(name, 1)
	p.loops.Go(func() {
		defer p.count(name, -1)
		if err := guard(func() error { return loop(p.ctx) }); err != nil {
			p.broke(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// OnStop registers what is to be closed when the process stops, after all loops have ended. The last registered is
// closed first. fn should end when its ctx does; if it does not, it is abandoned and the process goes on stopping.
func (p *Process) OnStop(name string, fn func(ctx context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closers = append(p.closers, closer{name, fn})
}

// Ready adds a condition for being ready. check is called for each look at /readyz, beside others, and must end with
// its ctx (2 s); its error is shown there.
func (p *Process) Ready(name string, fn func(ctx context.Context) error) {
	p.health.add(check{name, fn})
}

// Waiting lists what the process waits for at the moment, as /readyz does.
func (p *Process) Waiting(ctx context.Context) []Wait { return p.health.waiting(ctx) }

// broke notes an error and begins to stop. What a loop says because it was told to stop is none.
func (p *Process) broke(err error) {
	if p.ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(p.ctx))) {
		return
	}
	p.mu.Lock()
	p.errs = append(p.errs, err)
	p.mu.Unlock()
	p.fail(err)
}

func (p *Process) count(name string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[name] += n; p.running[name] == 0 {
		delete(p.running, name)
	}
}

// awaitLoops waits for the loops to end, but leaves time to close what they used.
func (p *Process) awaitLoops(most time.Duration) {
	ended := make(chan struct{})
	go func() {
		p.loops.Wait()
		close(ended)
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		p.mu.Lock()
		defer p.mu.Unlock()
		var names []string
		for name := range p.running {
			names = append(names, name)
		}
		slices.Sort(names)
		p.errs = append(p.errs, fmt.Errorf("stop: still running after %v: %s", most, strings.Join(names, ", ")))
	}
}

// close runs the OnStop functions, last first.
func (p *Process) close(ctx context.Context) {
	p.mu.Lock()
	closers := slices.Clone(p.closers)
	p.mu.Unlock()
	for _, c := range slices.Backward(closers) {
		ended := make(chan error, 1)
		go func() { ended <- guard(func() error { return c.fn(ctx) }) }()
		var err error
		select {
		case err = <-ended:
		case <-ctx.Done():
			// It may have ended just now, or need only a moment more to notice.
			select {
			case err = <-ended:
			case <-time.After(abandonAfter):
				err = ctx.Err()
			}
		}
		if err != nil {
			p.mu.Lock()
			p.errs = append(p.errs, fmt.Errorf("stop %s: %w", c.name, err))
			p.mu.Unlock()
		}
	}
}

// abandonAfter is what a closing function gets beyond the deadline to notice it.
const abandonAfter = 100 * time.Millisecond

// guard turns a panic into an error that holds the stack.
func guard(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return fn()
}
