package audit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/audit"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

const late = time.Minute

// rig is a real database, what leads tasks through their lives there, and a way past the store to damage them.
type rig struct {
	testing.TB
	store *mongostore.Store
	db    *mongo.Database
	now   time.Time
}

func newRig(t testing.TB) *rig {
	uri, name := stacktest.Mongo(t).URI(), stacktest.Database(t)
	r := &rig{TB: t}
	var err error
	r.store, err = mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: name})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.store.Close(context.Background())) })
	require.NoError(t, r.store.EnsureIndexes(t.Context()))
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Disconnect(context.Background())) })
	r.db = client.Database(name)
	r.now = r.time()
	return r
}

func (r *rig) time() time.Time {
	now, _, err := r.store.ServerTime(r.Context())
	require.NoError(r, err)
	return now.Truncate(time.Millisecond)
}

// ago is a time of the database in the past.
func (r *rig) ago(d time.Duration) time.Time { return r.now.Add(-d) }

func (r *rig) insert(id string, change ...func(*task.Task)) *task.Task {
	r.Helper()
	t := &task.Task{ID: id, Type: "email", Channel: task.ChannelStable, Priority: task.DefaultPriority, MaxAttempts: 3, MaxLosses: 3,
		Timeout: time.Minute, Retry: task.RetryPolicy{Base: time.Millisecond, Factor: 1, Max: time.Second}, OnExhausted: task.DeadLetter,
		Source: "api", SubmitHash: "v1:" + id}
	for _, c := range change {
		c(t)
	}
	status, err := r.store.Insert(r.Context(), []*task.Task{t})
	require.NoError(r, err)
	require.Equal(r, task.Inserted, status[0])
	return t
}

// claim starts a task, once it is due.
func (r *rig) claim(id string) *task.Task {
	r.Helper()
	var claimed []*task.Task
	stacktest.Eventually(r, 10*time.Second, id+" can be claimed", func() (done bool) {
		var err error
		claimed, err = r.store.Claim(r.Context(), task.ClaimRequest{IDs: []string{id}, Claim: fmt.Sprintf("c%d-%s", time.Now().UnixNano(), id), Worker: "w", Lease: time.Minute})
		require.NoError(r, err)
		return len(claimed) == 1
	})
	return claimed[0]
}

func (r *rig) finish(t *task.Task, kind task.OutcomeKind) {
	r.Helper()
	o := task.Outcome{Owned: task.Owned{ID: t.ID, Claim: t.Claim}, Worker: "w", Kind: kind, Task: t}
	if kind != task.Succeeded {
		o.Error = &task.Error{Message: "no answer", Cause: task.ReasonError}
	}
	answers, err := r.store.Finish(r.Context(), []task.Outcome{o})
	require.NoError(r, err)
	require.NoError(r, answers[0])
}

func (r *rig) running(id string, change ...func(*task.Task)) *task.Task {
	r.insert(id, change...)
	return r.claim(id)
}

func (r *rig) succeeded(id string, change ...func(*task.Task)) *task.Task {
	t := r.running(id, change...)
	r.finish(t, task.Succeeded)
	return t
}

// revive ends the execution of a running task as the reaper does.
func (r *rig) revive(id string) {
	r.Helper()
	done, err := r.store.Revive(r.Context(), []*task.Task{r.get(id)}, "r")
	require.NoError(r, err)
	require.Equal(r, []string{id}, done)
}

func (r *rig) get(id string) *task.Task {
	r.Helper()
	t, err := r.store.Get(r.Context(), id)
	require.NoError(r, err)
	return t
}

// damage writes into a document what no part of ax would.
func (r *rig) damage(collection, id string, update bson.D) {
	r.Helper()
	result, err := r.db.Collection(collection).UpdateOne(r.Context(), bson.D{{Key: "_id", Value: id}}, update)
	require.NoError(r, err)
	require.EqualValues(r, 1, result.MatchedCount, id)
}

// archive moves a task whatever its state.
func (r *rig) archive(id string) {
	r.Helper()
	var task bson.D
	require.NoError(r, r.db.Collection(mongostore.TasksCollection).FindOneAndDelete(r.Context(), bson.D{{Key: "_id", Value: id}}).Decode(&task))
	_, err := r.db.Collection(mongostore.ArchiveCollection).InsertOne(r.Context(), task)
	require.NoError(r, err)
}

func (r *rig) set(id string, pairs ...any) {
	r.Helper()
	r.damage(mongostore.TasksCollection, id, bson.D{{Key: "$set", Value: doc(pairs...)}})
}

func (r *rig) unset(id string, fields ...string) {
	r.Helper()
	d := bson.D{}
	for _, f := range fields {
		d = append(d, bson.E{Key: f, Value: ""})
	}
	r.damage(mongostore.TasksCollection, id, bson.D{{Key: "$unset", Value: d}})
}

func doc(pairs ...any) bson.D {
	d := bson.D{}
	for i := 0; i < len(pairs); i += 2 {
		d = append(d, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return d
}

// told says that the notifier has dealt with everything up to a time.
func (r *rig) told(at time.Time) {
	r.Helper()
	require.NoError(r, r.store.SaveCursor(r.Context(), "notifier", []byte("t"), at, 1))
}

// audit runs one and returns what it found as "kind id", in order.
func (r *rig) audit(change ...func(*audit.Options)) ([]string, audit.Summary) {
	r.Helper()
	var found []string
	o := audit.Options{Late: late, Settle: time.Millisecond, Report: func(v audit.Violation) error {
		found = append(found, strings.TrimSpace(string(v.Kind)+" "+v.Task))
		require.NotEmpty(r, v.Text)
		return nil
	}}
	for _, c := range change {
		c(&o)
	}
	sum, err := audit.Run(r.Context(), r.store, o)
	require.NoError(r, err)
	require.Len(r, found, sum.Violations)
	return found, sum
}
