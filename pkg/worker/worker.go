package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/process"
)

const (
	openRetryFirst = 250 * time.Millisecond
	openRetryMost  = 5 * time.Second
)

// Worker runs tasks. Make it with [New], register handlers with [Handle], then call Run once.
type Worker struct {
	opts Options

	mu         sync.Mutex
	kinds      map[string]registration
	order      []string
	middleware []Wrapper
	problems   []error
	engine     *engine
	started    bool

	stop    chan struct{} // closed by Stop
	once    sync.Once
	stopped chan struct{} // closed when Run has returned
}

// New makes a worker. It does nothing yet; the error names every option that is not allowed, and what is.
func New(o Options) (*Worker, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	return &Worker{opts: o, kinds: make(map[string]registration), stop: make(chan struct{}), stopped: make(chan struct{})}, nil
}

// ID is the name of this worker in the history of its tasks.
func (w *Worker) ID() string { return w.opts.ID }

// Use wraps the handlers of all types, also of those registered before: the first wrapper is the outermost.
func (w *Worker) Use(wrappers ...Wrapper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.middleware = append(w.middleware, wrappers...)
}

func (w *Worker) register(r registration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, twice := w.kinds[r.name]
	switch err := r.check(); {
	case err != nil:
		w.problems = append(w.problems, err)
	case twice:
		w.problems = append(w.problems, fmt.Errorf("task type %q: it has a handler already", r.name))
	case w.started:
		w.problems = append(w.problems, fmt.Errorf("task type %q: it was registered after Run", r.name))
	default:
		w.kinds[r.name] = r
		w.order = append(w.order, r.name)
	}
}

func (w *Worker) refuse(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, err)
}

// begin checks what was registered and makes it ready to run.
func (w *Worker) begin() ([]*kind, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.started:
		return nil, errors.New("worker: Run was called before; make a new worker")
	case len(w.problems) > 0:
		return nil, fmt.Errorf("worker: %w", errors.Join(w.problems...))
	case len(w.order) == 0:
		return nil, errors.New("worker: no task type has a handler; call worker.Handle before Run")
	}
	w.started = true
	kinds := make([]*kind, len(w.order))
	for i, name := range w.order {
		r := w.kinds[name]
		limit := w.opts.Slots
		if r.concurrency > 0 {
			limit = min(limit, r.concurrency)
		}
		kinds[i] = &kind{name: name, limit: limit, handler: r.wrapped(w.middleware)}
	}
	return kinds, nil
}

// Run works until ctx ends or Stop is called, then stops in order: it takes nothing new, lets handlers go on for
// [Options.SoftStop], ends their contexts with [ErrShutdown], records what they return, and hands unfinished tasks back. It
// returns within [Options.StopTimeout] and 2 s, with nil when nothing was left over; an error that matches [ErrDeaf] names
// handlers that did not return. It begins to work when MongoDB answers; NATS may come later, or never.
func (w *Worker) Run(ctx context.Context) error {
	kinds, err := w.begin()
	if err != nil {
		return err
	}
	defer close(w.stopped)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	forget := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-w.stop:
			cancel()
		case <-forget:
		}
	})
	defer watch.Wait()
	defer close(forget)

	m, err := newMetrics(w.opts.Registerer)
	if err != nil {
		return fmt.Errorf("worker: register metrics: %w", err)
	}
	store, err := w.open(ctx)
	if err != nil {
		return nil // ctx ended before the database answered: there is nothing to stop
	}
	e := newEngine(w.opts, kinds, store, w.connect, m)
	w.mu.Lock()
	w.engine = e
	w.mu.Unlock()
	err = e.run(ctx)

	closing, end := context.WithTimeout(context.Background(), time.Second/2)
	defer end()
	if problem := store.Close(closing); problem != nil {
		w.opts.Log.Debug("the database's connections were cut", "component", "worker", "err", problem)
	}
	return err
}

// open tries until the database answers or ctx ends.
func (w *Worker) open(ctx context.Context) (*mongostore.Store, error) {
	log := newQuietLog(w.opts.Log.With("component", "worker", "worker_id", w.opts.ID))
	for failures := 1; ; failures++ {
		store, err := mongostore.Open(ctx, mongostore.Options{URI: w.opts.MongoURI, Database: w.opts.Database, AppName: "ax-worker", Log: w.opts.Log})
		if err == nil {
			return store, nil
		}
		if ctx.Err() == nil {
			log.warn("the database cannot be reached, trying on; it is named by the option MongoURI (AX_MONGO_URI)", "err", process.Redact(err.Error()))
		}
		if !pause(ctx, backoff(failures, openRetryFirst, openRetryMost)) {
			return nil, ctx.Err()
		}
	}
}

// Stop asks Run to stop as it does at the end of its context, and waits until it has returned or ctx ends. A worker that was
// not started stops at once when it is.
func (w *Worker) Stop(ctx context.Context) error {
	w.once.Do(func() { close(w.stop) })
	w.mu.Lock()
	started := w.started
	w.mu.Unlock()
	if !started {
		return nil
	}
	select {
	case <-w.stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Health is nil while the worker can do its work. It fails before Run has reached the database and after it has returned,
// while the database is out of reach, and when every slot is held by a handler that goes on although its attempt is over:
// then only a restart helps.
func (w *Worker) Health() error {
	w.mu.Lock()
	e := w.engine
	w.mu.Unlock()
	select {
	case <-w.stopped:
		return errors.New("the worker has stopped")
	default:
	}
	if e == nil {
		return errors.New("the worker has not reached the database yet")
	}
	return e.health()
}
