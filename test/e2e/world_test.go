package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

const workType = "work"

// work is the payload of the ledger worker.
type work struct {
	RunMs int  `json:"runMs,omitempty"`
	Fail  int  `json:"fail,omitempty"`
	Deaf  bool `json:"deaf,omitempty"`
	Exit  bool `json:"exit,omitempty"`
}

// world is a running system of processes on a database of its own, with what a test needs to look at it.
type world struct {
	t        *testing.T
	mongoURI string
	database string
	nats     *localstack.NATSProcess
	system   *localstack.System
	workers  []*localstack.Service
	client   *client.Client
	store    *mongostore.Store
	db       *mongo.Database // opened by driver
	bin      string
	dir      string
	deaths   map[string]int64
	ledgers  []string
	lease    time.Duration

	mu   sync.Mutex
	ends map[string]string // task id -> terminal state, by the events
}

type worldOptions struct {
	bin      string                                   // folder with the programs of services and workers; empty: the usual one
	services []string                                 // nil: all
	env      []string                                 // of services and workers
	envOf    func(natsURL string) map[string][]string // of single services
	workers  int                                      // 0: two; negative: none
	slots    int                                      // 0: 20
	lease    time.Duration                            // 0: 5 s, so that a lost worker's tasks come back soon
	mongoURI string                                   // empty: the shared database of the test binary
}

func newWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	w := &world{t: t, mongoURI: o.mongoURI, dir: t.TempDir(), deaths: map[string]int64{}, ends: map[string]string{}, lease: o.lease}
	if w.mongoURI == "" {
		w.mongoURI, w.database = stacktest.Mongo(t).URI(), stacktest.Database(t)
	} else {
		w.database = "ax"
	}
	if o.bin == "" {
		o.bin = bin
	}
	w.bin = o.bin
	if w.lease == 0 {
		w.lease = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var err error
	w.nats, err = localstack.StartNATSProcess(ctx, localstack.NATSProcessOptions{Path: localstack.ServicePath(bin, "natsd"),
		NATSOptions: localstack.NATSOptions{Dir: filepath.Join(w.dir, "nats")}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.nats.Kill()) })
	var envOf map[string][]string
	if o.envOf != nil {
		envOf = o.envOf(w.nats.URL())
	}
	// The reaper of a new system revives nothing for one lease.
	env := append([]string{"AX_REAPER_LEASE=" + w.lease.String(), "AX_REAPER_BEAT=" + (w.lease / 5).String()}, o.env...)
	w.system, err = localstack.StartSystem(ctx, localstack.SystemOptions{Bin: o.bin, MongoURI: w.mongoURI, Database: w.database, NATSURL: w.nats.URL(),
		Env: env, EnvOf: envOf, Services: o.services})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.system.Stop(15*time.Second)) })

	w.store, err = mongostore.Open(ctx, mongostore.Options{URI: w.mongoURI, Database: w.database, AppName: "e2e"})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, w.store.Close(ctx))
	})
	w.client, err = client.Connect(client.Options{NATSURL: w.nats.URL(), Name: "e2e", MongoURI: w.mongoURI, Database: w.database})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.client.Close()) })
	t.Cleanup(w.explain)
	w.subscribe()
	if o.workers == 0 {
		o.workers = 2
	}
	for range max(o.workers, 0) {
		w.startWorker(ctx, o)
	}
	return w
}

func (w *world) subscribe() {
	_, err := w.client.Subscribe(w.t.Context(), events.SubscribeOptions{States: []string{"success", "failed", "cancelled"}, Remember: 1 << 18, Start: events.StartAll},
		func(_ context.Context, e events.Event) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ends[e.ID] = e.State
			return nil
		})
	require.NoError(w.t, err)
}

// explain shows of a failed test what did not end, and what the processes said.
func (w *world) explain() {
	if !w.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, state := range []task.State{task.Pending, task.Running} {
		open, err := w.store.List(ctx, "", state, 3, "")
		for _, listed := range open {
			if one, err := w.store.Get(ctx, listed.ID); err == nil {
				w.t.Logf("task %s is %s, due %v, history:", one.ID, one.State, one.ScheduledAt)
				for _, e := range one.History {
					w.t.Logf("  %v %s -> %s %s by %s %v", e.At, e.From, e.To, e.Reason, e.By, e.Error)
				}
			}
		}
		if err != nil {
			w.t.Logf("list what is %s: %v", state, err)
		}
	}
	all := slices.Clone(w.workers)
	for _, name := range localstack.ServiceNames {
		if s := w.system.Service(name); s != nil {
			all = append(all, s)
		}
	}
	for _, s := range all {
		w.t.Logf("output of %s:\n%s", s.Name(), s.Output())
	}
}

func (w *world) startWorker(ctx context.Context, o worldOptions, env ...string) *localstack.Service {
	name := fmt.Sprintf("worker-%d", len(w.workers)+1)
	slots := o.slots
	if slots == 0 {
		slots = 20
	}
	file := filepath.Join(w.dir, name+".ledger")
	s, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: name, Path: localstack.ServicePath(w.bin, "ledgerworker"),
		Env: append(append(w.system.Env(), "LEDGER_FILE="+file, "LEDGER_NAME="+name, fmt.Sprintf("LEDGER_SLOTS=%d", slots), "LEDGER_TYPES="+workType,
			"LEDGER_LEASE="+w.lease.String()), env...)})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, s.Stop(25*time.Second)) })
	require.NoError(w.t, s.WaitReady(ctx))
	w.workers, w.ledgers = append(w.workers, s), append(w.ledgers, file)
	return s
}

// kill ends a worker at once and notes when, for the ledger.
func (w *world) killWorker(s *localstack.Service) {
	require.NoError(w.t, s.Kill())
	w.deaths[s.Name()] = ledger.Now()
}

// submit stores tasks through the API and returns their ids.
func (w *world) submit(n int, payload work, opts ...client.Option) []string {
	w.t.Helper()
	return w.submitOf(workType, n, payload, opts...)
}

// submitOf is submit for tasks of another type.
func (w *world) submitOf(taskType string, n int, payload work, opts ...client.Option) []string {
	w.t.Helper()
	tasks := make([]client.Task, n)
	ids := make([]string, n)
	for i := range tasks {
		tasks[i] = client.NewTask(taskType, payload, opts...)
		ids[i] = tasks[i].ID()
	}
	answers, err := w.client.SubmitMany(w.t.Context(), tasks)
	require.NoError(w.t, err)
	for _, a := range answers {
		require.True(w.t, a.Accepted, "%+v", a.Error)
	}
	return ids
}

// awaitEnds waits until every task is terminal in the database and its completion event has come.
func (w *world) awaitEnds(ids []string, most time.Duration) map[string]*task.Task {
	w.t.Helper()
	stacktest.Eventually(w.t, most, fmt.Sprintf("%d completion events", len(ids)), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range ids {
			if w.ends[id] == "" {
				return false
			}
		}
		return true
	})
	ended := map[string]*task.Task{}
	for _, id := range ids {
		t, err := w.store.Get(w.t.Context(), id)
		require.NoError(w.t, err)
		require.True(w.t, t.State.Terminal(), "task %s is %s", id, t.State)
		w.mu.Lock()
		require.Equal(w.t, string(t.State), w.ends[id], "event and database differ about task %s", id)
		w.mu.Unlock()
		requireLegal(w.t, t)
		ended[id] = t
	}
	return ended
}

// requireLegal checks that every recorded change is a legal move and none is missing.
func requireLegal(t *testing.T, tk *task.Task) {
	t.Helper()
	for i, e := range tk.History {
		require.True(t, task.Allowed(e.From, e.To, e.Reason), "task %s: %s -> %s (%s)", tk.ID, e.From, e.To, e.Reason)
		if i > 0 {
			require.Equal(t, tk.History[i-1].Seq+1, e.Seq, "task %s", tk.ID)
			require.Equal(t, tk.History[i-1].To, e.From, "task %s", tk.ID)
		}
	}
	require.Equal(t, tk.Seq, tk.History[len(tk.History)-1].Seq)
}

// executions reads the ledgers, and requires that no task ever ran twice at the same time.
func (w *world) executions() []ledger.Execution {
	w.t.Helper()
	runs, err := ledger.Read(w.deaths, w.ledgers...)
	require.NoError(w.t, err)
	for _, o := range ledger.Overlaps(runs) {
		require.Fail(w.t, "a task ran twice at the same time", "%+v\n%+v", o.First, o.Second)
	}
	return runs
}

// requireAllSucceeded checks tasks that must all have run: recorded as success, and with a run that succeeded in the ledgers.
func (w *world) requireAllSucceeded(ended map[string]*task.Task) []ledger.Execution {
	w.t.Helper()
	runs := w.executions()
	ok := map[string]int{}
	for _, r := range runs {
		if r.Result == "ok" {
			ok[r.Task]++
		}
	}
	for id, t := range ended {
		require.Equal(w.t, task.Success, t.State, "task %s: %+v", id, t.LastError)
		require.Positive(w.t, ok[id], "task %s is recorded as succeeded, and no handler says so", id)
	}
	return runs
}
