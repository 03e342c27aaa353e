package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Every call of the client, on a running system.
func TestClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: 1})
	w.driver() // for all of them
	for _, call := range []struct {
		name string
		try  func(*testing.T)
	}{
		{"Submit", w.clientSubmit},
		{"SubmitMany", w.clientSubmitMany},
		{"Publish", w.clientPublish},
		{"InsertTx", w.clientInsertTx},
		{"Cancel and Rerun", w.clientCancel},
		{"List", w.clientList},
		{"Subscribe", w.clientSubscribe},
		{"Wait", w.clientWait},
	} {
		t.Run(call.name, func(t *testing.T) {
			w.t = t
			call.try(t)
		})
	}
	w.t = t
}

func (w *world) clientSubmit(t *testing.T) {
	ctx := t.Context()
	one := client.NewTask(workType, work{RunMs: 5}, client.ID("submit:1"), client.Priority(1), client.BizKey("order-1"), client.Label("team", "<red>"))
	id, err := w.client.Submit(ctx, one)
	require.NoError(t, err)
	require.Equal(t, "submit:1", id)
	_, err = w.client.Submit(ctx, one)
	require.NoError(t, err, "the same again is accepted once")
	_, err = w.client.Submit(ctx, client.NewTask(workType, work{RunMs: 6}, client.ID(id)))
	requireCode(t, events.CodeIDConflict, err)

	got, err := w.client.Wait(ctx, id)
	require.NoError(t, err)
	require.Equal(t, "success", got.State)
	got, err = w.client.Get(ctx, id)
	require.NoError(t, err)
	require.JSONEq(t, `{"runMs":5}`, string(got.Payload))
	require.JSONEq(t, `{"attempt":1}`, string(got.Result))
	require.Equal(t, []any{1, "order-1", "<red>", "api", 1}, []any{got.Priority, got.BizKey, got.Labels["team"], got.Source, got.Attempts})
	require.Equal(t, []string{"pending submitted", "running claimed", "success succeeded"}, w.history(t, id))

	_, err = w.client.Get(ctx, "nobody")
	requireCode(t, events.CodeNotFound, err)
	_, err = w.client.History(ctx, "nobody")
	requireCode(t, events.CodeNotFound, err)
	_, err = w.client.Wait(ctx, "nobody")
	requireCode(t, events.CodeNotFound, err)
}

// Many tasks travel in requests of bounded count and size, and each is answered in its place.
func (w *world) clientSubmitMany(t *testing.T) {
	bus := w.plain()
	var mu sync.Mutex
	var sizes []int
	spy, err := bus.Subscribe(events.APISubmitMany, func(m *nats.Msg) { // beside the submitters, which share the requests
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, len(m.Data))
	})
	require.NoError(t, err)
	defer spy.Unsubscribe()
	require.NoError(t, bus.Flush())

	const n = 2100 // three requests by count, and more by size
	later := client.Delay(time.Hour)
	tasks := make([]client.Task, n)
	large := strings.Repeat("x", 400_000)
	for i := range tasks {
		switch {
		case i == 7:
			tasks[i] = client.NewTask(workType, i, client.Priority(10))
		case i == 8:
			tasks[i] = client.NewTask(workType, i, client.ID("submit:1"))
		case i == 9 || i == 10:
			tasks[i] = client.NewTask(workType, "twice", client.ID("many:twice"), later)
		case i == 11:
			tasks[i] = client.NewTask(workType, "another", client.ID("many:twice"), later)
		case i%700 > 695: // two of these fill a request
			tasks[i] = client.NewTask(workType, large, later)
		default:
			tasks[i] = client.NewTask(workType, i, later)
		}
	}
	answers, err := w.client.SubmitMany(t.Context(), tasks)
	require.NoError(t, err)
	require.Len(t, answers, n)
	for i, a := range answers {
		require.Equal(t, tasks[i].ID(), a.ID)
		switch i {
		case 7:
			requireCode(t, events.CodeInvalid, a.Error)
			require.Equal(t, "priority", a.Error.Field)
		case 8, 11:
			requireCode(t, events.CodeIDConflict, a.Error)
			require.Equal(t, a.ID, a.Error.Value)
		default:
			require.Nil(t, a.Error, "%d: %+v", i, a.Error)
			require.True(t, a.Accepted)
			require.Equal(t, i == 10, a.Duplicate, i)
		}
	}
	require.EqualValues(t, n-4, w.count(t, bson.D{{Key: "source", Value: "api"}, {Key: "state", Value: "pending"}}))
	mu.Lock()
	require.GreaterOrEqual(t, len(sizes), 6)
	for _, size := range sizes {
		require.Less(t, size, 1<<20)
	}
	mu.Unlock()

	again, err := w.client.SubmitMany(t.Context(), append(tasks[:3:3], tasks[n-1]))
	require.NoError(t, err)
	for _, a := range again {
		require.True(t, a.Accepted && a.Duplicate)
	}
	none, err := w.client.SubmitMany(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

// What is published waits in NATS until a submitter is there.
func (w *world) clientPublish(t *testing.T) {
	submitter := w.system.Service("submitter")
	require.NoError(t, submitter.Kill())
	tasks := make([]client.Task, 50)
	for i := range tasks {
		tasks[i] = client.NewTask(workType, work{}, client.ID(fmt.Sprintf("publish:%d", i)))
	}
	tasks[20] = client.NewTask(workType, work{}, client.MaxAttempts(-1))
	for i, err := range w.client.Publish(t.Context(), tasks...) {
		if i == 20 {
			requireCode(t, events.CodeInvalid, err)
			continue
		}
		require.NoError(t, err)
	}
	require.Empty(t, w.client.Publish(t.Context()))
	require.NoError(t, submitter.Start(t.Context()))
	for i, one := range tasks {
		if i != 20 {
			stacktest.Eventually(t, late, "stored", func() bool { _, err := w.client.Get(t.Context(), one.ID()); return err == nil })
		}
	}
	got, err := w.client.Wait(t.Context(), "publish:49")
	require.NoError(t, err)
	require.Equal(t, []string{"success", "nats"}, []string{got.State, got.Source})

	for range 20 { // what is queued is not stored yet when the wait begins, mostly
		one := client.NewTask(workType, work{})
		for _, err := range w.client.Publish(t.Context(), one) {
			require.NoError(t, err)
		}
		got, err := w.client.Wait(t.Context(), one.ID())
		require.NoError(t, err)
		require.Equal(t, "success", got.State)
	}
}

// A task inserted in the user's transaction exists if and only if it commits.
func (w *world) clientInsertTx(t *testing.T) {
	orders := w.driver().Collection("orders")
	require.NoError(t, w.driver().CreateCollection(t.Context(), "orders"))
	// order writes a document of the user's own beside the tasks.
	order := func(id string, tasks ...client.Task) (ids []string, err error) {
		err = w.transact(t, func(ctx context.Context, db *mongo.Database) error {
			if _, err := db.Collection("orders").UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "paid", Value: true}}}},
				options.UpdateOne().SetUpsert(true)); err != nil {
				return err
			}
			var err error
			if ids, err = w.client.InsertTx(ctx, db, tasks...); err != nil {
				return err
			}
			if strings.HasPrefix(id, "aborted") {
				return errAborted
			}
			return nil
		})
		return ids, err
	}
	paid := func(id string) bool {
		n, err := orders.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: id}})
		require.NoError(t, err)
		return n == 1
	}

	_, err := order("aborted", client.NewTask(workType, work{}, client.ID("tx:aborted")))
	require.ErrorIs(t, err, errAborted)
	require.False(t, paid("aborted"))
	_, err = w.client.Get(t.Context(), "tx:aborted")
	requireCode(t, events.CodeNotFound, err)

	both := []client.Task{client.NewTask(workType, work{RunMs: 1}, client.ID("tx:1")), client.NewTask(workType, work{RunMs: 2}), client.NewTask(workType, work{RunMs: 1}, client.ID("tx:1"))}
	ids, err := order("committed", both...)
	require.NoError(t, err)
	require.Equal(t, []string{"tx:1", both[1].ID(), "tx:1"}, ids)
	require.True(t, paid("committed"))
	for _, id := range ids {
		got, err := w.client.Wait(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []any{"success", "tx", 1}, []any{got.State, got.Source, got.Attempts})
	}

	again, err := order("committed", both...)
	require.NoError(t, err, "the same transaction again is accepted")
	require.Equal(t, ids, again)
	_, err = w.client.Submit(t.Context(), both[0])
	require.NoError(t, err, "and the same submission by another door")
	require.Len(t, w.history(t, "tx:1"), 3, "it ran once")

	_, err = order("refused", client.NewTask(workType, work{}, client.ID("tx:new")), client.NewTask(workType, work{RunMs: 9}, client.ID("tx:1")))
	requireCode(t, events.CodeIDConflict, err)
	require.ErrorContains(t, err, "tx:1")
	_, err = order("refused", client.NewTask(workType, 1, client.ID("tx:new")), client.NewTask(workType, 2, client.ID("tx:new")))
	requireCode(t, events.CodeIDConflict, err)
	require.False(t, paid("refused"))
	_, err = w.client.Get(t.Context(), "tx:new")
	requireCode(t, events.CodeNotFound, err)

	later := client.Delay(time.Hour)
	_, err = order("aborted key", client.NewTask(workType, work{}, later, client.Unique("tx")))
	require.ErrorIs(t, err, errAborted)
	holder, err := order("key", client.NewTask(workType, work{}, later, client.Unique("tx")))
	require.NoError(t, err, "what was given up holds no key")
	_, err = order("refused", client.NewTask(workType, work{}, client.Unique("tx")))
	require.Equal(t, holder[0], held(t, err))
	require.False(t, paid("refused"))
	kept, err := order("kept", client.NewTask(workType, work{}, client.Unique("tx", client.OrKeep())))
	require.NoError(t, err)
	require.Equal(t, holder, kept)
	fresh, err := order("replaced", client.NewTask(workType, work{RunMs: 1}, client.Unique("tx", client.OrReplace())))
	require.NoError(t, err)
	got, err := w.client.Get(t.Context(), holder[0])
	require.NoError(t, err)
	require.Equal(t, "cancelled", got.State)
	got, err = w.client.Wait(t.Context(), fresh[0])
	require.NoError(t, err)
	require.Equal(t, "success", got.State)

	none, err := order("alone")
	require.NoError(t, err)
	require.Empty(t, none)

	w.racingTransactions(t, order)

	_, err = w.client.InsertTx(t.Context(), w.driver(), both[1])
	require.ErrorContains(t, err, "no session", "the context of the caller is not that of the transaction")
	err = w.transact(t, func(ctx context.Context, db *mongo.Database) error {
		_, err := w.client.InsertTx(ctx, db.Client().Database("elsewhere"), client.NewTask(workType, nil))
		return err
	})
	require.ErrorContains(t, err, "elsewhere", "ax would never look there")
	other, err := client.Connect(client.Options{NATSURL: w.nats.URL()})
	require.NoError(t, err)
	defer other.Close()
	_, err = other.InsertTx(t.Context(), w.driver(), both[0])
	require.ErrorContains(t, err, "Options.MongoURI is not set")
}

var errAborted = errors.New("changed my mind")

// racingTransactions insert the same task at the same time: it is there once, and who is told otherwise may ask again.
func (w *world) racingTransactions(t *testing.T, order func(string, ...client.Task) ([]string, error)) {
	one := client.NewTask(workType, work{}, client.ID("tx:raced"))
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = order(fmt.Sprintf("raced-%d", i), one) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil { // it was stored between the look and the insert
			requireCode(t, events.CodeIDConflict, err)
			_, err := order(fmt.Sprintf("raced-%d", i), one)
			require.NoError(t, err)
		}
	}
	require.EqualValues(t, 1, w.count(t, bson.D{{Key: "_id", Value: "tx:raced"}}))
}

func (w *world) clientCancel(t *testing.T) {
	ctx := t.Context()
	ids := append(w.submit(1, work{}, client.Delay(time.Hour)), w.submit(1, work{RunMs: 60_000})...)
	waiting, running := ids[0], ids[1]
	status, err := w.client.Cancel(ctx, waiting)
	require.NoError(t, err)
	require.Equal(t, "cancelled", status)
	entries, err := w.client.History(ctx, waiting)
	require.NoError(t, err)
	require.Equal(t, "operator/e2e", entries[1].By)

	w.awaitRunning(ids[1:])
	status, err = w.client.Cancel(ctx, running)
	require.NoError(t, err)
	require.Equal(t, "cancelling", status)
	began := time.Now()
	got, err := w.client.Wait(ctx, running)
	require.NoError(t, err)
	require.Equal(t, "cancelled", got.State)
	require.Less(t, time.Since(began), task.CancelGrace, "its handler was told")

	status, err = w.client.Cancel(ctx, "submit:1")
	require.NoError(t, err)
	require.Equal(t, "finished", status)
	_, err = w.client.Cancel(ctx, "nobody")
	requireCode(t, events.CodeNotFound, err)

	again, err := w.client.Rerun(ctx, "submit:1")
	require.NoError(t, err)
	got, err = w.client.Wait(ctx, again)
	require.NoError(t, err)
	require.Equal(t, []string{"success", "submit:1"}, []string{got.State, got.RerunOf})
	_, err = w.client.Rerun(ctx, w.submit(1, work{}, client.Delay(time.Hour))[0])
	requireCode(t, events.CodeInvalid, err)
}

func (w *world) clientList(t *testing.T) {
	seen := map[string]bool{}
	req := events.ListRequest{Type: workType, State: "success", Limit: 10}
	for pages := 1; ; pages++ {
		reply, err := w.client.List(t.Context(), req)
		require.NoError(t, err)
		for i, one := range reply.Tasks {
			require.False(t, seen[one.ID], "twice")
			require.Equal(t, "success", one.State)
			require.Nil(t, one.Payload)
			if i > 0 {
				require.Less(t, one.ID, reply.Tasks[i-1].ID)
			}
			seen[one.ID] = true
		}
		if req.After = reply.Next; req.After == "" {
			require.Greater(t, pages, 3)
			break
		}
	}
	require.EqualValues(t, len(seen), w.count(t, bson.D{{Key: "state", Value: "success"}}))
}

func (w *world) clientSubscribe(t *testing.T) {
	got := make(chan events.Event, 100)
	sub, err := w.client.Subscribe(t.Context(), events.SubscribeOptions{Types: []string{workType}}, func(_ context.Context, e events.Event) error {
		got <- e
		return nil
	})
	require.NoError(t, err)
	defer sub.Stop()
	id := w.submit(1, work{Fail: 1}, client.Retry(100*time.Millisecond, 1, time.Second, 0), client.BizKey("b"))[0]
	var told []string
	for len(told) < 5 {
		select {
		case e := <-got:
			if e.ID == id {
				require.EqualValues(t, len(told)+1, e.Seq)
				require.Equal(t, "b", e.BizKey)
				told = append(told, e.State+" "+e.Reason)
			}
		case <-time.After(late):
			require.Fail(t, "no event", "%v", told)
		}
	}
	require.Equal(t, []string{"pending submitted", "running claimed", "pending retry", "running claimed", "success succeeded"}, told)
}

// The event of its end wakes a wait at once. Where no event comes, the stored task is looked at.
func (w *world) clientWait(t *testing.T) {
	const look = 2500 * time.Millisecond // no wait looks sooner by itself
	woken := false
	for try := 0; try < 3 && !woken; try++ { // a machine may be busy for once
		id := w.submit(1, work{RunMs: 300})[0]
		began := time.Now()
		got, err := w.client.Wait(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "success", got.State)
		woken = time.Since(began) < look
	}
	require.True(t, woken, "by the event")

	failed := w.submit(1, work{Fail: 1}, client.MaxAttempts(1))[0]
	got, err := w.client.Wait(t.Context(), failed)
	require.NoError(t, err)
	require.Equal(t, []string{"failed", "exhausted", "this attempt fails by plan"}, []string{got.State, got.Reason, got.LastError.Message})

	waitFor := func(id string) chan events.Task {
		ended := make(chan events.Task, 1)
		go func() {
			got, err := w.client.Wait(t.Context(), id)
			if err != nil {
				got.State = err.Error()
			}
			ended <- got
		}()
		return ended
	}
	notifier := w.system.Service("notifier")
	require.NoError(t, notifier.Signal(syscall.SIGSTOP)) // nobody tells of anything
	silent := w.submit(1, work{RunMs: 300})[0]
	require.Equal(t, "success", (<-waitFor(silent)).State, "by a look at the stored task")
	require.NoError(t, notifier.Signal(syscall.SIGCONT))

	running := w.submit(1, work{RunMs: 2000})
	w.awaitRunning(running)
	ended := waitFor(running[0])
	require.NoError(t, w.nats.Wipe(t.Context()))
	require.Equal(t, "success", (<-ended).State, "although NATS was away, and forgot everything")
}

func requireCode(t *testing.T, code string, err error) {
	t.Helper()
	var refused *events.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, code, refused.Code, refused.Message)
}

// history is what the client tells of a task's changes, in short.
func (w *world) history(t *testing.T, id string) []string {
	t.Helper()
	entries, err := w.client.History(t.Context(), id)
	require.NoError(t, err)
	var changes []string
	for i, e := range entries {
		require.EqualValues(t, i+1, e.Seq)
		changes = append(changes, e.To+" "+e.Reason)
	}
	return changes
}

// count asks the database itself how many tasks there are.
func (w *world) count(t *testing.T, filter bson.D) int64 {
	t.Helper()
	n, err := w.driver().Collection(mongostore.TasksCollection).CountDocuments(t.Context(), filter)
	require.NoError(t, err)
	return n
}

// driver is the database as a program of the user reaches it, with a client of its own.
func (w *world) driver() *mongo.Database {
	w.t.Helper()
	if w.db == nil {
		mc, err := mongo.Connect(options.Client().ApplyURI(w.mongoURI))
		require.NoError(w.t, err)
		w.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			require.NoError(w.t, mc.Disconnect(ctx))
		})
		w.db = mc.Database(w.database)
	}
	return w.db
}

// transact runs do in a transaction of the user's, as the driver's documentation shows it.
func (w *world) transact(t *testing.T, do func(ctx context.Context, db *mongo.Database) error) error {
	t.Helper()
	db := w.driver()
	session, err := db.Client().StartSession()
	require.NoError(t, err)
	defer session.EndSession(context.WithoutCancel(t.Context()))
	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) { return nil, do(ctx, db) })
	return err
}
