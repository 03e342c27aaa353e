package mongostore

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestInsertStoresEveryField(t *testing.T) {
	s := openStore(t)
	before, bound, err := s.Now()
	require.NoError(t, err)
	in := newTask(func(tk *task.Task) {
		tk.Priority, tk.Channel = 0, task.ChannelCanary
		tk.Timeout, tk.MaxAttempts, tk.MaxLosses = 90*time.Second, 7, 0
		tk.Retry = task.RetryPolicy{Base: 250 * time.Millisecond, Factor: 1.5, Max: 3 * time.Minute, Jitter: 0.25}
		tk.OnExhausted = task.Ignore
		tk.ScheduledAt = before.Add(time.Hour).Truncate(time.Millisecond)
		tk.ExpiresAt = before.Add(2 * time.Hour).Truncate(time.Millisecond)
		tk.UniqueKey, tk.ConcurrencyKey, tk.WorkflowID, tk.RerunOf = "u", "c", "wf", "old"
		tk.Labels = map[string]string{"team": "blue", "naïve": "$x"}
		tk.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		tk.DependsOn, tk.WaitFor, tk.Condition = []string{"a", "b"}, []string{"g"}, "all_done"
	})
	status, err := s.Insert(t.Context(), []*task.Task{in})
	require.NoError(t, err)
	require.Equal(t, []task.InsertStatus{task.Inserted}, status)

	got := getTask(t, s, in.ID)
	require.Equal(t, in, got)
	requireSound(t, got)
	require.Equal(t, task.Pending, got.State)
	require.Equal(t, got.ExpiresAt, got.CheckAt)
	require.Equal(t, "submitter/api", got.History[0].By)
	require.WithinDuration(t, before, got.CreatedAt, time.Second)
	require.False(t, got.CreatedAt.After(before.Add(time.Second+bound)))
}

func TestInsertSchedulesAtOnceAndLetsWait(t *testing.T) {
	s := openStore(t)
	now := insertTasks(t, s, 1)[0]
	got := getTask(t, s, now.ID)
	require.Equal(t, got.CreatedAt.Add(-250*time.Millisecond), got.ScheduledAt)
	require.Zero(t, got.CheckAt)

	for _, wait := range []func(*task.Task){
		func(tk *task.Task) { tk.WaitingOn = []string{"parent"} },
		func(tk *task.Task) { tk.Held = true },
	} {
		got := getTask(t, s, insertTasks(t, s, 1, wait)[0].ID)
		require.Equal(t, task.Waiting, got.State)
		require.Equal(t, got.CreatedAt.Add(5*time.Second), got.CheckAt)
		requireSound(t, got)
	}
}

func TestInsertTellsARepeatFromAConflict(t *testing.T) {
	s := openStore(t)
	stored := insertTasks(t, s, 2)
	claimTasks(t, s, stored[0])
	before := getTask(t, s, stored[0].ID)

	again := newTask(func(tk *task.Task) { tk.ID, tk.SubmitHash = stored[0].ID, stored[0].SubmitHash })
	other := newTask(func(tk *task.Task) { tk.ID, tk.Payload = stored[1].ID, json.RawMessage(`"other"`) })
	fresh := newTask()
	twin := newTask(func(tk *task.Task) { tk.ID = fresh.ID })
	status, err := s.Insert(t.Context(), []*task.Task{again, other, fresh, twin})
	require.NoError(t, err)
	require.Equal(t, []task.InsertStatus{task.Duplicate, task.Conflict, task.Inserted, task.Conflict}, status)

	require.Equal(t, before, getTask(t, s, stored[0].ID), "a repeat changes nothing")
	require.JSONEq(t, `{"n":1}`, string(getTask(t, s, stored[1].ID).Payload), "a conflict changes nothing")
}

// A fixed id is also looked for where the unique _id of the tasks collection no longer reaches.
func TestInsertAsksTheArchive(t *testing.T) {
	s := openStore(t)
	old := insertTasks(t, s, 1)[0]
	archiveTask(t, s, old.ID)

	again := newTask(func(tk *task.Task) { tk.ID, tk.SubmitHash, tk.FixedID = old.ID, old.SubmitHash, true })
	other := newTask(func(tk *task.Task) { tk.ID, tk.FixedID = old.ID, true })
	fresh := newTask(func(tk *task.Task) { tk.FixedID = true })
	status, err := s.Insert(t.Context(), []*task.Task{again, other, fresh})
	require.NoError(t, err)
	require.Equal(t, []task.InsertStatus{task.Duplicate, task.Conflict, task.Inserted}, status)
	require.Equal(t, old.SubmitHash, getTask(t, s, old.ID).SubmitHash, "still the archived one")

	docs, status, err := s.Prepare(t.Context(), []*task.Task{again, newTask(func(tk *task.Task) { tk.FixedID = true })})
	require.NoError(t, err)
	require.Equal(t, []task.InsertStatus{task.Duplicate, 0}, status)
	require.Nil(t, docs[0])
	require.NotNil(t, docs[1])
}

// archiveTask moves a document as the archiver does.
func archiveTask(t *testing.T, s *Store, id string) {
	t.Helper()
	raw, err := s.tasks.FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
	require.NoError(t, err)
	_, err = s.archive.InsertOne(t.Context(), raw)
	require.NoError(t, err)
	_, err = s.tasks.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}})
	require.NoError(t, err)
}

// The caller's transaction decides whether a prepared task exists.
func TestPrepareForATransaction(t *testing.T) {
	s := openStore(t)
	if !s.Features().Transactions {
		t.Skip("the server has no transactions")
	}
	kept, dropped := newTask(), newTask()
	docs, _, err := s.Prepare(t.Context(), []*task.Task{kept, dropped})
	require.NoError(t, err)
	session, err := s.hot.StartSession()
	require.NoError(t, err)
	defer session.EndSession(context.Background())
	for i, end := range []func(context.Context) error{session.CommitTransaction, session.AbortTransaction} {
		require.NoError(t, session.StartTransaction())
		_, err = s.tasks.InsertOne(mongo.NewSessionContext(t.Context(), session), docs[i])
		require.NoError(t, err)
		require.NoError(t, end(t.Context()))
	}
	requireSound(t, getTask(t, s, kept.ID))
	_, err = s.Get(t.Context(), dropped.ID)
	require.ErrorIs(t, err, task.ErrNotFound)
	claimTasks(t, s, kept)
}

func TestInsertSplitsByCountAndBytes(t *testing.T) {
	sizes := &commandSizes{name: "insert"}
	s := openStore(t, func(o *Options) { o.adjust = sizes.watch })
	insertTasks(t, s, 2100)
	require.Equal(t, 3, sizes.count())

	sizes.reset()
	payload, err := json.Marshal(strings.Repeat("x", 500<<10))
	require.NoError(t, err)
	big := insertTasks(t, s, 40, func(tk *task.Task) { tk.Payload = payload })
	require.GreaterOrEqual(t, sizes.count(), 3)
	require.LessOrEqual(t, sizes.largest(), maxBatchBytes+64<<10)
	require.Equal(t, json.RawMessage(payload), getTask(t, s, big[39].ID).Payload)
}

// The reply of an insert is lost: the driver sends it again and is told that all is stored already.
func TestInsertWhoseReplyIsLost(t *testing.T) {
	cut := &replyCutter{}
	s := openStore(t, func(o *Options) { o.adjust = cut.dial })
	tasks := []*task.Task{newTask(), newTask(), newTask()}
	cut.arm("insert")
	status, err := s.Insert(t.Context(), tasks)
	require.True(t, cut.fired(), "a reply was cut")
	if err != nil { // the driver did not repeat it; the caller does
		status, err = s.Insert(t.Context(), tasks)
	}
	require.NoError(t, err)
	for _, st := range status {
		require.Contains(t, []task.InsertStatus{task.Inserted, task.Duplicate}, st)
	}
	for _, tk := range tasks {
		require.Len(t, getTask(t, s, tk.ID).History, 1)
	}
}

func TestInsertWithADeadContext(t *testing.T) {
	s := openStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tk := newTask()
	status, err := s.Insert(ctx, []*task.Task{tk})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, status[0])
	_, err = s.Get(t.Context(), tk.ID)
	require.True(t, errors.Is(err, task.ErrNotFound))
}
