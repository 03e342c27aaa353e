package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

const taskType = "email"

// rig is a database and a NATS of the test's own, with the whole service running on them.
type rig struct {
	t      *testing.T
	config Config
	db     *mongostore.Store
	bus    *natsbus.Bus
	nats   *localstack.NATSProcess
	number atomic.Int64
}

func newRig(t *testing.T) *rig {
	return newRigOn(t, stacktest.Mongo(t).URI(), stacktest.Database(t))
}

func newRigOn(t *testing.T, uri, database string) *rig {
	t.Helper()
	nats := stacktest.NATS(t)
	r := &rig{t: t, nats: nats, config: Config{
		WithNATS: process.WithNATS{NATSURL: nats.URL(), Common: process.Common{
			MongoURI: uri, Database: database, HTTPAddr: "127.0.0.1:0", LogLevel: "warn", StopTimeout: 10 * time.Second}},
		Sweep: 2 * time.Second, Horizon: 5 * time.Second, Walk: 10 * time.Second, LockTTL: 3 * time.Second,
	}}
	var err error
	r.db, err = mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: database})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.db.Close(context.Background())) })
	require.NoError(t, r.db.EnsureIndexes(t.Context()))
	r.bus, err = natsbus.Connect(natsbus.Options{URL: nats.URL()})
	require.NoError(t, err)
	t.Cleanup(r.bus.Close)
	_, err = r.bus.EnsureStreams(t.Context())
	require.NoError(t, err)
	return r
}

// instance is one running dispatcher.
type instance struct {
	t    *testing.T
	addr string
	stop func()
}

// dispatcher runs the service in this process until stopped.
func (r *rig) dispatcher() *instance {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, addr := make(chan error, 1), make(chan string, 1)
	go func() {
		ended <- process.Run(ctx, service, r.config.Common, func(ctx context.Context, p *process.Process) error {
			addr <- p.Addr()
			return setUp(ctx, p, r.config)
		})
	}()
	i := &instance{t: r.t, stop: sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-ended)
	})}
	r.t.Cleanup(i.stop)
	select {
	case i.addr = <-addr:
	case err := <-ended:
		require.NoError(r.t, err)
	}
	return i
}

func (i *instance) get(path string) (int, string) {
	i.t.Helper()
	answer, err := http.Get("http://" + i.addr + path)
	require.NoError(i.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(i.t, err)
	return answer.StatusCode, string(body)
}

// metric is the sum of a metric over its labels.
func (i *instance) metric(name string) (sum float64) {
	i.t.Helper()
	_, body := i.get("/metrics")
	for line := range strings.SplitSeq(body, "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			var v float64
			_, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v)
			require.NoError(i.t, err)
			sum += v
		}
	}
	return sum
}

func (i *instance) awaitLeading() {
	i.t.Helper()
	stacktest.Eventually(i.t, 30*time.Second, "it leads", func() bool { return i.metric("ax_lead_leading_bool") == 1 })
}

// insert stores n tasks; change may adjust the i-th.
func (r *rig) insert(n int, change func(i int, t *task.Task)) []*task.Task {
	r.t.Helper()
	tasks := make([]*task.Task, n)
	for i := range tasks {
		number := r.number.Add(1)
		tasks[i] = &task.Task{
			ID: fmt.Sprintf("t-%06d", number), Type: taskType, Priority: task.DefaultPriority, Channel: task.ChannelStable,
			MaxAttempts: 3, MaxLosses: 3, Timeout: task.DefaultTimeout, Retry: task.DefaultRetry, OnExhausted: task.DeadLetter,
			Source: "api", SubmitHash: fmt.Sprintf("v1:%d", number),
		}
		if change != nil {
			change(i, tasks[i])
		}
	}
	_, err := r.db.Insert(r.t.Context(), tasks)
	require.NoError(r.t, err)
	return tasks
}

// now is the database's time.
func (r *rig) now() time.Time {
	now, _, err := r.db.Now()
	require.NoError(r.t, err)
	return now
}

// arrival is a task seen in a signal.
type arrival struct {
	events.SignalTask
	sequence uint64    // of its signal in the stream
	at       time.Time // the database's time of its arrival
	tm       time.Time // the process's
}

// fleet stands for the workers: it takes signals from all three lanes of a type, in batches like a worker's, claims what
// they name, and keeps a list.
type fleet struct {
	r      *rig
	slots  int
	finish bool // what is claimed ends at once

	mu       sync.Mutex
	arrivals []arrival
	claimed  map[string]int

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// workers starts a fleet that claims about as many tasks at a time as it has slots, and leaves them running.
func (r *rig) workers(slots int) *fleet { return r.fleet(slots, false) }

func (r *rig) fleet(slots int, finish bool) *fleet {
	ctx, cancel := context.WithCancel(context.Background())
	f := &fleet{r: r, slots: slots, finish: finish, claimed: make(map[string]int), cancel: cancel}
	for _, lane := range task.Lanes {
		f.done.Go(func() { f.run(ctx, lane) })
	}
	r.t.Cleanup(f.stop)
	return f
}

func (f *fleet) stop() {
	f.cancel()
	f.done.Wait()
}

func (f *fleet) run(ctx context.Context, name task.Lane) {
	lane := f.r.bus.Lane(taskType, task.ChannelStable, string(name))
	defer lane.Close()
	for n := 0; ctx.Err() == nil; n++ {
		msgs, err := lane.FetchNoWait(ctx, f.slots)
		if err != nil || len(msgs) == 0 {
			lane.Listen(1)
			timer := time.NewTimer(100 * time.Millisecond)
			select {
			case <-ctx.Done():
			case <-timer.C:
			case m, ok := <-lane.Arrivals():
				if ok {
					msgs = append(msgs, m)
				}
			}
			timer.Stop()
		}
		f.take(ctx, name, msgs, n)
	}
}

func (f *fleet) take(ctx context.Context, lane task.Lane, msgs []natsbus.Message, n int) {
	at, bound, _ := f.r.db.Now()
	var ids []string
	var latest int64
	f.mu.Lock()
	for _, m := range msgs {
		var s events.Signal
		if json.Unmarshal(m.Data, &s) != nil {
			panic("not a signal")
		}
		for _, t := range s.Tasks {
			f.arrivals = append(f.arrivals, arrival{t, m.Sequence, at, time.Now()})
			ids = append(ids, t.ID)
			latest = max(latest, t.At)
		}
	}
	f.mu.Unlock()
	// This clock's estimate may be a little behind the dispatcher's: a signal that is early is held, as a worker does.
	early := time.NewTimer(time.UnixMilli(latest).Sub(at.Add(-bound)))
	defer early.Stop()
	select {
	case <-early.C:
	case <-ctx.Done():
		return
	}
	if len(ids) > 0 {
		got, err := f.r.db.Claim(ctx, task.ClaimRequest{IDs: ids, Claim: fmt.Sprintf("c-%s-%s-%d", f.r.config.Database, lane, n), Worker: "w", Lease: time.Minute})
		if err != nil {
			return // the signals come again
		}
		if f.finish {
			outcomes := make([]task.Outcome, len(got))
			for i, t := range got {
				outcomes[i] = task.Outcome{Owned: task.Owned{ID: t.ID, Claim: t.Claim}, Worker: "w", Kind: task.Succeeded, Task: t}
			}
			if _, err := f.r.db.Finish(ctx, outcomes); err != nil {
				return
			}
		}
		f.mu.Lock()
		for _, t := range got {
			f.claimed[t.ID]++
		}
		f.mu.Unlock()
	}
	for _, m := range msgs {
		_ = m.Ack() // lost with the bus: it comes again
	}
}

// seen lists the signalled tasks in the order of their signals. A signal may have been delivered several times: what was
// handed to a worker that did not take it comes again.
func (f *fleet) seen() []arrival {
	f.mu.Lock()
	defer f.mu.Unlock()
	delivered := make(map[string]bool)
	var seen []arrival
	for _, a := range f.arrivals {
		if key := fmt.Sprint(a.sequence, a.ID); !delivered[key] {
			delivered[key] = true
			seen = append(seen, a)
		}
	}
	slices.SortStableFunc(seen, func(a, b arrival) int { return cmp.Compare(a.sequence, b.sequence) })
	return seen
}

func (f *fleet) started() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.claimed)
}

func (f *fleet) await(n int, within time.Duration) {
	f.r.t.Helper()
	stacktest.Eventually(f.r.t, within, fmt.Sprintf("%d tasks are started", n), func() bool { return f.started() >= n })
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, times := range f.claimed {
		require.Equal(f.r.t, 1, times, "%s was claimed twice", id)
	}
}
