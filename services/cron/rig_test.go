package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
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

// rig is a database with schedules.
type rig struct {
	t     *testing.T
	env   []string
	db    *mongostore.Store
	tasks *mongo.Collection // for what no part of ax does: to read ids, and to plant what must not be believed
	early int               // slots that may bear a creation time before their own: one that fell due just before a step back is stored after it
}

func newRig(t *testing.T) *rig {
	return newRigOn(t, stacktest.Mongo(t).URI(), stacktest.Database(t))
}

func newRigOn(t *testing.T, uri, database string) *rig {
	t.Helper()
	r := &rig{t: t, env: []string{
		"AX_MONGO_URI=" + uri, "AX_MONGO_DB=" + database, "AX_NATS_URL=nats://127.0.0.1:1", // cron does without
		"AX_CRON_LOCK_TTL=1s",
	}}
	var err error
	r.db, err = mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: database})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.db.Close(context.Background())) })
	require.NoError(t, r.db.EnsureIndexes(t.Context()))
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Disconnect(context.Background())) })
	r.tasks = client.Database(database).Collection(mongostore.TasksCollection)
	return r
}

// cron runs the service as a process.
func (r *rig) cron() *localstack.Service {
	r.t.Helper()
	return stacktest.Service(r.t, service, r.env...)
}

func (r *rig) now() time.Time {
	r.t.Helper()
	now, _, err := r.db.ServerTime(r.t.Context())
	require.NoError(r.t, err)
	return now
}

// put stores a schedule as its door does; spoil may then break what the door would have refused.
func (r *rig) put(name, cron string, spoil ...func(*task.Schedule)) task.Schedule {
	r.t.Helper()
	s, err := intake.BuildSchedule(&events.Schedule{Name: name, Cron: cron, Task: events.SubmitRequest{
		Type: "report", Submit: events.Submit{Payload: json.RawMessage(`{"kind":"daily"}`)},
	}}, r.now())
	require.NoError(r.t, err)
	for _, f := range spoil {
		f(s)
	}
	stored, err := r.db.PutSchedule(r.t.Context(), *s)
	require.NoError(r.t, err)
	require.True(r.t, stored)
	return *s
}

// slots returns the slots of a schedule that have become tasks, in order. Each must carry what the schedule says and not have been
// stored before its time.
func (r *rig) slots(name string) []time.Time {
	r.t.Helper()
	prefix := "cron:" + name + ":"
	cursor, err := r.tasks.Find(r.t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: prefix}, {Key: "$lt", Value: prefix + "~"}}}})
	require.NoError(r.t, err)
	var found []struct {
		ID        string    `bson:"_id"`
		Type      string    `bson:"taskType"`
		Source    string    `bson:"source"`
		CreatedAt time.Time `bson:"createdAt"`
	}
	require.NoError(r.t, cursor.All(r.t.Context(), &found))
	var slots []time.Time
	early := 0
	for _, f := range found {
		slot, err := time.Parse(time.RFC3339, f.ID[len(prefix):])
		require.NoError(r.t, err)
		require.Equal(r.t, []string{"report", "cron"}, []string{f.Type, f.Source})
		// A creation time is an estimate less its error, so it may lie that much before the slot, but no more.
		if slot.Sub(f.CreatedAt) >= 250*time.Millisecond {
			early++
			require.LessOrEqual(r.t, early, r.early, "%s fired early, at %s", f.ID, f.CreatedAt)
		}
		slots = append(slots, slot.UTC())
	}
	slices.SortFunc(slots, time.Time.Compare)
	return slots
}

func (r *rig) awaitSlots(name string, n int) []time.Time {
	r.t.Helper()
	var slots []time.Time
	stacktest.Eventually(r.t, patience, fmt.Sprintf("%s has fired %d times", name, n), func() bool {
		slots = r.slots(name)
		return len(slots) >= n
	})
	return slots
}

func (r *rig) schedule(name string) task.Schedule {
	r.t.Helper()
	s, err := r.db.Schedule(r.t.Context(), name)
	require.NoError(r.t, err)
	return s
}
