package mongostore

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

func TestMain(m *testing.M) {
	if given := os.Getenv(contends); given != "" {
		var c contender
		err := json.Unmarshal([]byte(given), &c)
		if err == nil {
			err = contend(c)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	stacktest.Main(m)
}

// openStore opens a store on a fresh database with all indexes. change may adjust the options.
func openStore(t testing.TB, change ...func(*Options)) *Store {
	t.Helper()
	o := Options{URI: stacktest.Mongo(t).URI(), Database: stacktest.Database(t), AppName: "test"}
	for _, c := range change {
		c(&o)
	}
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Close(ctx))
	})
	require.NoError(t, s.EnsureIndexes(t.Context()))
	return s
}

var taskNumber atomic.Int64

// newTask is a valid task as intake makes one; change may adjust it.
func newTask(change ...func(*task.Task)) *task.Task {
	n := taskNumber.Add(1)
	t := &task.Task{
		ID: fmt.Sprintf("t-%06d", n), Type: "email", Priority: task.DefaultPriority, Channel: task.ChannelStable,
		MaxAttempts: task.DefaultMaxAttempts, MaxLosses: task.DefaultMaxLosses, Timeout: task.DefaultTimeout, Retry: task.DefaultRetry,
		OnExhausted: task.DeadLetter, Payload: json.RawMessage(`{"n":1}`), Source: "api", SubmitHash: fmt.Sprintf("v1:%d", n),
		BizKey: "order|7", Echo: `{"bizKey":"order|7"}`,
	}
	for _, c := range change {
		c(t)
	}
	return t
}

// insertTasks stores n new tasks.
func insertTasks(t testing.TB, s *Store, n int, change ...func(*task.Task)) []*task.Task {
	t.Helper()
	tasks := make([]*task.Task, n)
	for i := range tasks {
		tasks[i] = newTask(change...)
	}
	status, err := s.Insert(t.Context(), tasks)
	require.NoError(t, err)
	for _, st := range status {
		require.Equal(t, task.Inserted, st)
	}
	return tasks
}

func idsOf(tasks []*task.Task) []string {
	ids := make([]string, len(tasks))
	for i, tk := range tasks {
		ids[i] = tk.ID
	}
	return ids
}

var claimNumber atomic.Int64

func newClaim() string { return fmt.Sprintf("claim-%d", claimNumber.Add(1)) }

// claimTasks claims all of the tasks under a fresh token for worker w1, and returns them as claimed.
func claimTasks(t testing.TB, s *Store, tasks ...*task.Task) []*task.Task {
	t.Helper()
	got, err := s.Claim(t.Context(), task.ClaimRequest{IDs: idsOf(tasks), Claim: newClaim(), Worker: "w1", Lease: task.DefaultLease})
	require.NoError(t, err)
	require.Len(t, got, len(tasks))
	return got
}

func getTask(t testing.TB, s *Store, id string) *task.Task {
	t.Helper()
	got, err := s.Get(t.Context(), id)
	require.NoError(t, err)
	return got
}

// patch changes a stored task behind the store's back, to bring it into a state that a test needs.
func patch(t testing.TB, s *Store, id string, set bson.D) {
	t.Helper()
	r, err := s.tasks.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: set}})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.MatchedCount)
}

// requireSound checks what must hold of every stored task: history without a gap whose newest entry is the change string, and legal moves only.
func requireSound(t testing.TB, tk *task.Task) {
	t.Helper()
	require.NotEmpty(t, tk.History)
	for i, e := range tk.History {
		require.True(t, task.Allowed(e.From, e.To, e.Reason), "%s -> %s because of %s", e.From, e.To, e.Reason)
		if i > 0 {
			require.Equal(t, tk.History[i-1].Seq+1, e.Seq)
			require.Equal(t, tk.History[i-1].To, e.From)
		}
	}
	last := tk.History[len(tk.History)-1]
	require.Equal(t, tk.Seq, last.Seq)
	require.Equal(t, tk.State, last.To)
	change, err := task.ParseChange(tk.Change)
	require.NoError(t, err)
	require.Equal(t, task.Change{Seq: tk.Seq, Type: tk.Type, Channel: tk.Channel, Priority: tk.Priority, From: last.From, To: last.To,
		Reason: last.Reason, Attempt: last.Attempt, Claim: last.Claim, At: last.At, ScheduledAt: tk.ScheduledAt, By: last.By, Echo: tk.Echo}, change)
	require.Equal(t, tk.State.Terminal(), !tk.FinishedAt.IsZero())
	running := tk.State == task.Running
	require.Equal(t, running, !tk.LeaseUntil.IsZero())
	require.Equal(t, running, !tk.DeadlineAt.IsZero())
	require.Equal(t, running, tk.WorkerID != "")
	if running {
		require.Equal(t, tk.LeaseUntil, tk.CheckAt)
		require.False(t, tk.LeaseUntil.After(tk.DeadlineAt))
	}
	if tk.State.Terminal() {
		require.Zero(t, tk.CheckAt)
	}
}
