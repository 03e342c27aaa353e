package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	workers       = 2
	slots         = 100
	killAt        = 0.4              // of the replay: when a worker is killed
	slowShare     = 0.06             // of the invocations, where the database is the slow stand-in
	scale         = 100              // recorded run times are divided by this
	longest       = time.Second      // and cut off here
	stall         = 90 * time.Second // without any progress for so long, the replay gives up: longer than a lease and its sweep
	failsOnce     = 0.05             // share of the tasks whose first attempt fails
	failsForGood  = 0.002            // share of the tasks that fail every attempt
	publishEvery  = 20 * time.Millisecond
	progressEvery = time.Second
)

// driver runs the replay and accounts for it.
type driver struct {
	settings
	dir string

	mongo   *localstack.Mongo
	nats    *localstack.NATS
	system  *localstack.System
	workers []*localstack.Service
	client  *client.Client
	store   *mongostore.Store

	published atomic.Int64
	began     int64
	deaths    map[string]int64

	mu    sync.Mutex
	ends  map[string]string // task id -> terminal state, as the subscriber was told
	moved time.Time         // when the last end came
}

func (d *driver) run(ctx context.Context) (err error) {
	tr, err := loadTrace(d.data)
	if err != nil {
		return err
	}
	d.ends, d.deaths = map[string]string{}, map[string]int64{}
	defer func() { err = errors.Join(err, d.stop()) }()
	if err := d.start(ctx); err != nil {
		return err
	}
	share := d.share
	if share == 0 {
		share = 1
		if d.mongo.Slow() {
			share = slowShare
		}
	}
	plan := tr.arrivals(d.minute, share, d.seed)
	fmt.Printf("replaying %d of %d recorded invocations of %d functions: %d minutes in %s\n",
		len(plan), tr.total(), len(tr.functions), tr.minutes, (time.Duration(tr.minutes) * d.minute).Round(time.Second))

	var showing sync.WaitGroup
	showCtx, stopShowing := context.WithCancel(ctx)
	showing.Go(func() { d.show(showCtx, len(plan)) })
	tasks, err := d.replay(ctx, tr, plan)
	if err == nil {
		err = d.awaitEnds(ctx, len(tasks))
	}
	stopShowing()
	showing.Wait()
	if err != nil {
		return err
	}
	return d.account(ctx, tasks)
}

// start brings up the database, NATS, the services, the workers and the subscriber.
func (d *driver) start(ctx context.Context) (err error) {
	if d.mongo, err = localstack.StartMongo(ctx, localstack.MongoOptions{Log: os.Stdout}); err != nil {
		return err
	}
	if err := d.mongo.Answers(ctx); err != nil {
		return err
	}
	if d.nats, err = localstack.StartNATS(ctx, localstack.NATSOptions{}); err != nil {
		return err
	}
	begun := time.Now()
	const database = "ax_replay"
	d.system, err = localstack.StartSystem(ctx, localstack.SystemOptions{Bin: d.bin, MongoURI: d.mongo.URI(), Database: database,
		NATSURL: d.nats.URL(), Output: d.log})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		w, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: name, Path: self, Args: []string{workerCommand}, Log: d.log(name),
			Env: append(d.system.Env(), envName+"="+name, envLedger+"="+d.ledger(name), envData+"="+d.data, fmt.Sprintf("%s=%d", envSlots, slots))})
		if err != nil {
			return err
		}
		d.workers = append(d.workers, w)
	}
	for _, w := range d.workers {
		if err := w.WaitReady(ctx); err != nil {
			return err
		}
	}
	if d.client, err = client.Connect(client.Options{NATSURL: d.nats.URL(), Name: "ax-replay"}); err != nil {
		return err
	}
	if d.store, err = mongostore.Open(ctx, mongostore.Options{URI: d.mongo.URI(), Database: database, AppName: "ax-replay"}); err != nil {
		return err
	}
	_, err = d.client.Subscribe(ctx, events.SubscribeOptions{States: []string{string(task.Success), string(task.Failed), string(task.Cancelled)},
		Remember: 1 << 20, MaxPending: 2000}, d.ended)
	if err != nil {
		return err
	}
	fmt.Printf("five services and %d workers with %d slots each are ready after %s\n", workers, slots, time.Since(begun).Round(100*time.Millisecond))
	return nil
}

func (d *driver) ledger(worker string) string { return filepath.Join(d.dir, worker+".ledger") }

// log keeps a program's output in a file beside the ledgers.
func (d *driver) log(name string) io.Writer {
	f, err := os.Create(filepath.Join(d.dir, name+".log"))
	if err != nil {
		return io.Discard // logs are for a look afterwards; the replay does not need them
	}
	return f
}

func (d *driver) stop() error {
	var errs []error
	if d.client != nil {
		errs = append(errs, d.client.Close())
	}
	if d.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		errs = append(errs, d.store.Close(ctx))
	}
	for _, w := range d.workers {
		errs = append(errs, w.Stop(20*time.Second))
	}
	if d.system != nil {
		errs = append(errs, d.system.Stop(15*time.Second))
	}
	if d.nats != nil {
		d.nats.Stop()
	}
	if d.mongo != nil {
		errs = append(errs, d.mongo.Stop())
	}
	return errors.Join(errs...)
}

// ended takes note of a completion event.
func (d *driver) ended(_ context.Context, e events.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if earlier, ok := d.ends[e.ID]; ok && earlier != e.State {
		return fmt.Errorf("task %s ended %s and then %s", e.ID, earlier, e.State)
	}
	d.ends[e.ID] = e.State
	d.moved = time.Now()
	return nil
}

func (d *driver) endedCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ends)
}

// planned is a task as it was submitted: how it must end follows from it.
type planned struct {
	id      string
	failing int // attempts that fail by plan
}

// replay publishes each invocation at its time and kills a worker on the way.
func (d *driver) replay(ctx context.Context, tr *trace, plan []arrival) ([]planned, error) {
	length := time.Duration(tr.minutes) * d.minute
	begun := time.Now()
	d.began = ledger.Now()
	tasks := make([]planned, 0, len(plan))
	killed := false
	ticker := time.NewTicker(publishEvery)
	defer ticker.Stop()
	for next := 0; next < len(plan); {
		now := time.Since(begun)
		if !killed && now > time.Duration(killAt*float64(length)) {
			killed = true
			if err := d.kill(); err != nil {
				return nil, err
			}
		}
		var batch []client.Task
		for ; next < len(plan) && plan[next].At <= now; next++ {
			t, p := invocationTask(tr.functions[plan[next].Function], next)
			batch, tasks = append(batch, t), append(tasks, p)
		}
		for i, err := range d.client.Publish(ctx, batch...) {
			if err != nil {
				return nil, fmt.Errorf("publish task %s: %w", batch[i].ID(), err)
			}
		}
		d.published.Add(int64(len(batch)))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return tasks, nil
}

// invocationTask makes the task of one invocation. The number decides whether it fails, so every replay of a seed is the same.
func invocationTask(f function, n int) (client.Task, planned) {
	p := planned{id: fmt.Sprintf("replay-%07d", n)}
	switch u := rand.New(rand.NewPCG(uint64(n), 0)).Float64(); {
	case u < failsForGood:
		p.failing = task.DefaultMaxAttempts
	case u < failsForGood+failsOnce:
		p.failing = 1
	}
	in := invocation{RunMs: float64(min(f.Run/scale, longest)) / float64(time.Millisecond), Fail: p.failing, Published: ledger.Now()}
	return client.NewTask(f.Type, in, client.ID(p.id), client.Priority(f.Priority), client.Label("trigger", f.Trigger)), p
}

func (d *driver) kill() error {
	victim := d.workers[0]
	if err := victim.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", victim.Name(), err)
	}
	d.deaths[victim.Name()] = ledger.Now()
	fmt.Printf("\r%-100s\n", fmt.Sprintf("kill -9 of %s: what it ran comes back when its leases end, after %s", victim.Name(), task.DefaultLease))
	return nil
}

// awaitEnds waits until a completion event came for every task, or nothing moves any more.
func (d *driver) awaitEnds(ctx context.Context, n int) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	d.mu.Lock()
	d.moved = time.Now()
	d.mu.Unlock()
	for d.endedCount() < n {
		d.mu.Lock()
		still := time.Since(d.moved)
		d.mu.Unlock()
		if still > stall {
			return nil // the account says what is missing
		}
		for _, w := range d.workers[1:] {
			if !w.Running() {
				return fmt.Errorf("%s died: %v; its last output:\n%s", w.Name(), w.ExitError(), w.Output())
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// show prints a line that follows the replay.
func (d *driver) show(ctx context.Context, total int) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	begun, last := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			fmt.Println()
			return
		case <-ticker.C:
		}
		n := d.endedCount()
		fmt.Printf("\r%4.0f s   submitted %6d of %d   ended %6d   %5d a second   ", time.Since(begun).Seconds(), d.published.Load(), total, n, n-last)
		last = n
	}
}
