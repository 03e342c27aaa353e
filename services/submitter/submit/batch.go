package submit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	inserters     = 2 // one insert travels while the server works on the other; more only split the batches
	maxBatchBytes = 8 << 20
	firstBackoff  = 100 * time.Millisecond
	mostBackoff   = 5 * time.Second
	// suspectAfter is how many failed inserts, by a database that answers otherwise, make the batch itself suspect.
	suspectAfter = 3
	watchPause   = 3 // the attempt whose pause is half a second or so

	// A batch of several that is smaller than largeBatch is followed by a pause of apart times what an insert takes, at most mostApart,
	// in which the next one gathers: all that follows (change events, signals, claims, reports) then comes in batches too, and costs
	// far less than one by one. A database that answers at once hardly has any; a lone task is not followed by one.
	largeBatch = 64
	apart      = 3
	mostApart  = 10 * time.Millisecond
)

// errStopping is what requests are told while the service stops.
var errStopping = errors.New("the submitter is stopping")

// job is a task on its way into the database.
type job struct {
	task *task.Task
	// settle is called once: with a status, or with the reason why there is none. Not for patient jobs that fail: see setAside.
	settle func(task.InsertStatus, error)
	// setAside marks a job that waits until the database answers, because its submission is queued. It is called instead of
	// settle when this task cannot be stored for now: soon says whether it may be tried again at once.
	setAside func(soon bool)
}

func (j *job) patient() bool { return j.setAside != nil }

// batcher stores tasks in batches. A lone task is stored at once; while inserts are on their way, and for a little after one of several
// tasks, the next batch gathers. So the batches grow with the load and with the time the database takes, and with nothing else.
type batcher struct {
	store   Inserter
	max     int
	log     *slog.Logger
	metrics *metrics
	timeout time.Duration // of one insert
	grace   time.Duration // what an insert on its way gets when the service stops

	in   chan *job
	out  chan []*job
	done chan struct{} // closed when nothing is taken in any more

	retrying atomic.Int32 // batches that wait for their next try
	taking   atomic.Int64 // what an insert takes, in nanoseconds; moving average

	mu      sync.Mutex
	failing error     // of the newest insert; nil: it worked
	success time.Time // of the newest insert that worked; monotonic
	told    bool      // the log says that it fails
	noisy   rate.Sometimes
}

func newBatcher(store Inserter, cfg Config, log *slog.Logger, m *metrics) *batcher {
	return &batcher{store: store, max: cfg.Batch, timeout: cfg.Insert, grace: cfg.Grace, log: log, metrics: m, in: make(chan *job), out: make(chan []*job),
		done: make(chan struct{}), noisy: seldom()}
}

// put hands a job over. It waits while as much is gathered as one batch may hold.
func (b *batcher) put(ctx context.Context, j *job) error {
	select {
	case b.in <- j:
		return nil
	case <-b.done:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run gathers and inserts until ctx ends; then what is on its way may still arrive, and what is not is set aside.
func (b *batcher) run(ctx context.Context) {
	lingering, end := linger(ctx, b.grace)
	defer end()
	var running sync.WaitGroup
	for range inserters {
		running.Go(func() {
			for batch := range b.out {
				b.insert(ctx, lingering, batch)
			}
		})
	}
	b.gather(ctx)
	close(b.out)
	running.Wait()
}

func (b *batcher) gather(ctx context.Context) {
	defer close(b.done)
	var batch []*job
	size := 0
	paused := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		in, out := b.in, b.out
		if len(batch) == 0 || paused && len(batch) < largeBatch {
			out = nil
		}
		if len(batch) >= b.max || size >= maxBatchBytes {
			in = nil
		}
		select {
		case j := <-in:
			batch, size = append(batch, j), size+len(j.task.Payload)+1024
		case out <- batch:
			if paused = len(batch) > 1; paused {
				timer.Reset(min(mostApart, apart*time.Duration(b.taking.Load())))
			}
			batch, size = nil, 0
		case <-timer.C:
			paused = false
		case <-ctx.Done():
			abandon(batch, errStopping)
			return
		}
	}
}

// insert stores a batch, however long that takes. Requests are answered at the first failure; queued submissions stay, so that
// nothing has to be fetched again when the database comes back.
func (b *batcher) insert(ctx, lingering context.Context, batch []*job) {
	began := time.Now()
	for attempt := 1; ; attempt++ {
		batch = b.tryPatient(lingering, batch)
		switch {
		case len(batch) == 0:
			return
		case ctx.Err() != nil:
			abandon(batch, errStopping)
			return
		case attempt >= suspectAfter && b.workedSince(began):
			b.insertEach(lingering, batch)
			return
		}
		b.retry(ctx, attempt)
		if attempt >= suspectAfter {
			batch = b.probe(lingering, batch, attempt)
		}
	}
}

// probe finds out whether a batch fails or the database does: by another batch if there is one, else by one of its own tasks.
// Without it two bad tasks could hold up all others. It returns what is to be tried next.
func (b *batcher) probe(ctx context.Context, batch []*job, attempt int) []*job {
	if len(batch) <= b.max {
		select {
		case other := <-b.out:
			return append(batch, b.tryPatient(ctx, other)...)
		default:
		}
	}
	if len(batch) > 1 {
		k := attempt % len(batch)
		if len(b.tryPatient(ctx, batch[k:k+1])) == 0 {
			batch = slices.Delete(batch, k, k+1)
		}
	}
	return batch
}

// insertEach finds out which tasks of a batch the database does not take. They are set aside, and the others stored.
func (b *batcher) insertEach(ctx context.Context, batch []*job) {
	for _, j := range batch {
		if left, err := b.try(ctx, []*job{j}); len(left) > 0 {
			b.log.Error("the database takes others but not this task; it is tried again later", "task_id", j.task.ID, "task_type", j.task.Type, "err", err)
			b.metrics.setAside.Inc()
			j.setAside(false)
		}
	}
}

// tryPatient inserts once and returns what is left and waits.
func (b *batcher) tryPatient(ctx context.Context, batch []*job) []*job {
	if len(batch) == 0 {
		return nil
	}
	rest, err := b.try(ctx, batch)
	return tellRequests(rest, err)
}

// retry pauses between two tries. While any batch does, the next insert tells whether the database works.
func (b *batcher) retry(ctx context.Context, attempt int) {
	b.retrying.Add(1)
	defer b.retrying.Add(-1)
	pause(ctx, attempt)
}

// try inserts once, settles what has an answer, and returns the rest.
func (b *batcher) try(ctx context.Context, batch []*job) (rest []*job, err error) {
	tasks := make([]*task.Task, len(batch))
	for i, j := range batch {
		tasks[i] = j.task
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	began := time.Now()
	status, err := b.store.Insert(ctx, tasks)
	took := time.Since(began)
	b.metrics.inserted(len(batch), took)
	b.taking.Add((took.Nanoseconds() - b.taking.Load()) / 8)
	for i, j := range batch {
		if i >= len(status) || status[i] == 0 {
			rest = append(rest, j)
			continue
		}
		b.metrics.settled(status[i])
		j.settle(status[i], nil)
	}
	if len(rest) > 0 && err == nil {
		err = fmt.Errorf("insert: no answer for %d of %d tasks", len(rest), len(batch))
	}
	// A batch of which some were stored proves that the database works; what is wrong with the rest is theirs.
	if err == nil || len(rest) < len(batch) {
		b.worked()
	} else {
		b.failed(err)
	}
	return rest, err
}

func tellRequests(batch []*job, err error) (patient []*job) {
	for _, j := range batch {
		if j.patient() {
			patient = append(patient, j)
		} else {
			j.settle(0, err)
		}
	}
	return patient
}

func abandon(batch []*job, err error) {
	for _, j := range tellRequests(batch, err) {
		j.setAside(true)
	}
}

func (b *batcher) failed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing = err
	b.noisy.Do(func() {
		b.told = true
		b.log.Warn("cannot store tasks; submissions wait", "err", err)
	})
}

func (b *batcher) worked() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing, b.success = nil, time.Now()
	if b.told {
		b.told = false
		b.noisy = seldom() // the next outage is news again
		b.log.Info("storing tasks again")
	}
}

func (b *batcher) workedSince(t time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.success.Before(t)
}

// watch ends a failure that no insert would end, because none is waiting: the next one finds out again.
func (b *batcher) watch(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, watchPause)
		if b.failure() != nil && b.retrying.Load() == 0 && b.answers(ctx) {
			b.mu.Lock()
			b.failing = nil
			b.mu.Unlock()
		}
	}
}

// failure returns why tasks cannot be stored at present, or nil.
func (b *batcher) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failing
}

// answers asks whether the database can be used, and its time is known.
func (b *batcher) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if b.store.Ping(ctx) != nil {
		return false
	}
	_, _, err := b.store.Now()
	return err == nil
}

// pause waits before attempt+1, longer each time and never as long as others do.
func pause(ctx context.Context, attempt int) {
	most := min(mostBackoff, firstBackoff<<min(attempt, 10))
	timer := time.NewTimer(most/2 + rand.N(most/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// linger returns a context that ends a grace after ctx does, or when end is called.
func linger(ctx context.Context, grace time.Duration) (lingering context.Context, end func()) {
	lingering, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var timer *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(grace, cancel)
	})
	return lingering, func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		cancel()
	}
}
