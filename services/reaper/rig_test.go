package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.ServiceMain(m, main) }

const patience = 90 * time.Second

// rig is a database, with what submitters and workers do to it.
type rig struct {
	t             *testing.T
	uri, database string
	env           []string
	db            *mongostore.Store
	raw           *mongo.Client // for tasks()
}

func newRig(t *testing.T) *rig {
	return newRigOn(t, stacktest.Mongo(t).URI(), stacktest.Database(t))
}

func newRigOn(t *testing.T, uri, database string) *rig {
	t.Helper()
	r := &rig{t: t, uri: uri, database: database, env: []string{
		"AX_MONGO_URI=" + uri, "AX_MONGO_DB=" + database, "AX_NATS_URL=nats://127.0.0.1:1", // the reaper does without
		"AX_REAPER_LOCK_TTL=2s",
	}}
	r.db = r.open()
	require.NoError(t, r.db.EnsureIndexes(t.Context()))
	raw, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, raw.Disconnect(context.Background())) })
	r.raw = raw
	return r
}

// open connects to the rig's database.
func (r *rig) open() *mongostore.Store {
	r.t.Helper()
	db, err := mongostore.Open(r.t.Context(), mongostore.Options{URI: r.uri, Database: r.database})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, db.Close(context.Background())) })
	return db
}

// reaper runs the service as a process. Workers' leases are of the given length for it, and beats a third of that.
func (r *rig) reaper(lease time.Duration, env ...string) *localstack.Service {
	r.t.Helper()
	return stacktest.Service(r.t, service, append(append([]string{
		"AX_REAPER_LEASE=" + lease.String(), "AX_REAPER_BEAT=" + (lease / 3).String(), "AX_REAPER_GRACE=200ms", "AX_REAPER_EVERY=50ms",
	}, r.env...), env...)...)
}

// trusting waits until a reaper leads and its first pause is over.
func (r *rig) trusting(s *localstack.Service) {
	r.t.Helper()
	stacktest.AwaitLeading(r.t, s)
	stacktest.Eventually(r.t, patience, "the reaper trusts the database", func() bool {
		return stacktest.Metric(r.t, s, "ax_reaper_paused_bool") == 0
	})
}

// submit stores n tasks; set may adjust each submission.
func (r *rig) submit(name string, n int, set ...func(*events.Submit)) (ids []string) {
	r.t.Helper()
	now, _, err := r.db.Now()
	require.NoError(r.t, err)
	tasks := make([]*task.Task, n)
	for i := range tasks {
		sub := events.Submit{ID: fmt.Sprintf("%s-%05d", name, i), Payload: json.RawMessage(`{"n":1}`)}
		for _, s := range set {
			s(&sub)
		}
		tasks[i], err = intake.Build(&sub, intake.Origin{Type: "email", Source: intake.SourceAPI, Now: now})
		require.NoError(r.t, err)
		ids = append(ids, tasks[i].ID)
	}
	_, err = r.db.Insert(r.t.Context(), tasks)
	require.NoError(r.t, err)
	return ids
}

// claim takes tasks for a worker.
func (r *rig) claim(worker string, lease time.Duration, ids ...string) []*task.Task {
	r.t.Helper()
	claimed, err := r.db.Claim(r.t.Context(), task.ClaimRequest{IDs: ids, Claim: events.NewToken(), Worker: worker, Lease: lease})
	require.NoError(r.t, err)
	require.Len(r.t, claimed, len(ids))
	return claimed
}

// claimWhenDue takes one task once it is due: what was lost twice is put off for a while.
func (r *rig) claimWhenDue(worker string, lease time.Duration, id string) {
	r.t.Helper()
	stacktest.Eventually(r.t, task.LossDelay(id, 2)+patience, "it is due", func() bool {
		claimed, err := r.db.Claim(r.t.Context(), task.ClaimRequest{IDs: []string{id}, Claim: events.NewToken(), Worker: worker, Lease: lease})
		require.NoError(r.t, err)
		return len(claimed) == 1
	})
}

// beat extends leases as a live worker does, until stopped, and counts those it was told to be lost.
func (r *rig) beat(worker string, lease time.Duration, tasks []*task.Task) (lost *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	owned := make([]task.Owned, len(tasks))
	for i, t := range tasks {
		owned[i] = task.Owned{ID: t.ID, Claim: t.Claim}
	}
	lost = new(atomic.Int64)
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(lease / 6)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			calling, done := context.WithTimeout(ctx, 2*time.Second)
			answer, err := r.db.Heartbeat(calling, task.HeartbeatRequest{Worker: worker, Owned: owned, Lease: lease})
			done()
			if err == nil {
				lost.Store(int64(len(answer.Lost)))
			}
		}
	})
	stop = func() {
		cancel()
		beating.Wait()
	}
	r.t.Cleanup(stop)
	return lost, stop
}

// formerLeader revives what is over until the test ends, beside the reaper that leads.
func (r *rig) formerLeader() {
	db := r.open() // connections of its own: it must not queue behind the workers' reports
	ctx, cancel := context.WithCancel(context.Background())
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		for ctx.Err() == nil {
			now, _, err := db.Now()
			var due []*task.Task
			if err == nil {
				due, err = db.SweepCheck(ctx, now, 500)
			}
			if err == nil && len(due) > 0 {
				_, _ = db.Revive(ctx, due, "former") // the outcome shows in the tasks
			}
			after(10 * time.Millisecond)
		}
	})
	r.t.Cleanup(func() {
		cancel()
		sweeping.Wait()
	})
}

func (r *rig) get(id string) *task.Task {
	r.t.Helper()
	t, err := r.db.Get(r.t.Context(), id)
	require.NoError(r.t, err)
	return t
}

// awaitChange waits until a task has gone through a change for the reason given, and returns the task and when that was.
func (r *rig) awaitChange(id string, reason task.Reason) (*task.Task, time.Time) {
	r.t.Helper()
	var found *task.Task
	var at time.Time
	stacktest.Eventually(r.t, patience, fmt.Sprintf("%s: %s", id, reason), func() bool {
		t, err := r.db.Get(r.t.Context(), id)
		require.NoError(r.t, err)
		for _, h := range t.History {
			if h.Reason == reason {
				found, at = t, h.At
			}
		}
		return found != nil
	})
	return found, at
}

// after ends once d has passed, as a worker's work does.
func after(d time.Duration) { <-time.After(d) }
