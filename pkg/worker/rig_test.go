package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
		return
	}
	stacktest.Main(m)
}

// patience is how long a test waits for what should happen soon, on a busy machine.
const patience = 30 * time.Second

// rig is a real database and a real NATS, without any service: the test submits, signals and reaps by hand.
type rig struct {
	testing.TB
	store *mongostore.Store
	nats  *localstack.NATSProcess
	bus   *natsbus.Bus
	db    string
	log   *slog.Logger
}

func newRig(t testing.TB) *rig {
	r := &rig{TB: t, db: stacktest.Database(t), nats: stacktest.NATS(t), log: testLog(t)}
	var err error
	r.store, err = mongostore.Open(t.Context(), mongostore.Options{URI: stacktest.Mongo(t).URI(), Database: r.db, AppName: "test"})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, r.store.Close(ctx))
	})
	require.NoError(t, r.store.EnsureIndexes(t.Context()))
	r.bus, err = natsbus.Connect(natsbus.Options{URL: r.nats.URL(), Name: "test"})
	require.NoError(t, err)
	t.Cleanup(r.bus.Close)
	stacktest.Eventually(t, patience, "the streams are there", func() bool { // the disk may be slow
		_, err := r.bus.EnsureStreams(t.Context())
		return err == nil
	})
	return r
}

// worker makes a worker on the rig that beats often; change may adjust its options.
func (r *rig) worker(change ...func(*Options)) *Worker {
	o := Options{MongoURI: stacktest.Mongo(r).URI(), Database: r.db, NATSURL: r.nats.URL(), Log: r.log,
		Slots: 10, Lease: 6 * time.Second, Beat: 300 * time.Millisecond, StopTimeout: 5 * time.Second, SoftStop: 100 * time.Millisecond}
	for _, c := range change {
		c(&o)
	}
	w, err := New(o)
	require.NoError(r, err)
	return w
}

// run starts a worker, waits until it works, and returns what stops it and gives what Run returned.
func (r *rig) run(w *Worker) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-result:
			return err
		case <-time.After(patience):
			return fmt.Errorf("the worker did not stop")
		}
	})
	r.Cleanup(func() { _ = stop() }) // tests that care call it themselves
	stacktest.Eventually(r, patience, "the worker is up", func() bool { return w.Health() == nil })
	return stop
}

var taskNumber atomic.Int64

// insert stores tasks of a type that are due at once; change may adjust each.
func (r *rig) insert(taskType string, n int, change ...func(*task.Task)) []*task.Task {
	tasks := make([]*task.Task, n)
	for i := range tasks {
		number := taskNumber.Add(1)
		tasks[i] = &task.Task{ID: fmt.Sprintf("t-%05d", number), Type: taskType, Priority: task.DefaultPriority, Channel: task.ChannelStable,
			MaxAttempts: task.DefaultMaxAttempts, MaxLosses: task.DefaultMaxLosses, Timeout: time.Minute,
			Retry: task.RetryPolicy{Base: 100 * time.Millisecond, Factor: 1, Max: time.Second}, OnExhausted: task.DeadLetter,
			Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, number)), Source: "api", SubmitHash: fmt.Sprintf("v1:%d", number)}
		for _, c := range change {
			c(tasks[i])
		}
	}
	status, err := r.store.Insert(r.Context(), tasks)
	require.NoError(r, err)
	for _, s := range status {
		require.Equal(r, task.Inserted, s)
	}
	return tasks
}

// signal tells workers of tasks, in one message.
func (r *rig) signal(tasks ...*task.Task) {
	s := events.Signal{}
	for _, t := range tasks {
		s.Tasks = append(s.Tasks, events.SignalTask{ID: t.ID, Seq: 1, Attempt: 0, At: t.ScheduledAt.UnixMilli()})
	}
	_, err := r.bus.JS().Publish(r.Context(), events.SubjectWork(tasks[0].Type, tasks[0].Channel, string(tasks[0].Lane())), events.EncodeSignal(s))
	require.NoError(r, err)
}

// submit stores tasks and tells workers of each.
func (r *rig) submit(taskType string, n int, change ...func(*task.Task)) []*task.Task {
	tasks := r.insert(taskType, n, change...)
	for _, t := range tasks {
		r.signal(t)
	}
	return tasks
}

func (r *rig) get(id string) *task.Task {
	t, err := r.store.Get(r.Context(), id)
	require.NoError(r, err)
	return t
}

// await waits until a task is as it should be.
func (r *rig) await(id, what string, is func(*task.Task) bool) *task.Task {
	r.Helper()
	var last *task.Task
	defer func() {
		if r.Failed() && last != nil {
			r.Logf("task %s: state %s, attempts %d, failures %d, losses %d, history %+v", id, last.State, last.Attempts, last.Failures, last.Losses, last.History)
		}
	}()
	stacktest.Eventually(r, patience, id+" "+what, func() bool {
		last = r.get(id)
		return is(last)
	})
	return last
}

func (r *rig) awaitState(id string, s task.State) *task.Task {
	r.Helper()
	return r.await(id, "is "+string(s), func(t *task.Task) bool { return t.State == s })
}

// reasons is the kept history of a task, by reason.
func reasons(t *task.Task) []task.Reason {
	list := make([]task.Reason, len(t.History))
	for i, e := range t.History {
		list[i] = e.Reason
	}
	return list
}

// reap ends an execution as the reaper does when its lease is over, without waiting for that.
func (r *rig) reap(id string) {
	read := r.get(id)
	require.Equal(r, task.Running, read.State)
	revived, err := r.store.Revive(r.Context(), []*task.Task{read}, "test")
	require.NoError(r, err)
	require.Equal(r, []string{id}, revived)
}

// testLog writes to the test's own log, and drops what comes after its end.
func testLog(t testing.TB) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *testWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", line)
	}
	return len(line), nil
}

// counted is the value of a counter or gauge without labels, or of all label values together.
func counted(t testing.TB, g prometheus.Gatherer, name string) (sum float64) {
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// gate lets handlers wait for the test and the test for handlers.
type gate struct {
	entered chan string   // execution ids, as handlers begin
	open    chan struct{} // closed to let them go
}

func newGate() *gate { return &gate{entered: make(chan string, 100), open: make(chan struct{})} }

func (g *gate) awaitEntry(t testing.TB) string {
	t.Helper()
	select {
	case id := <-g.entered:
		return id
	case <-time.After(patience):
		t.Fatal("no handler began")
		return ""
	}
}

// pass waits in a handler until the gate opens, or its context ends.
func (g *gate) pass(ctx context.Context) error {
	t, _ := TaskOf(ctx)
	g.entered <- t.ExecutionID
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
