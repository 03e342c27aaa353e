package mongostore

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

func owned(tasks ...*task.Task) []task.Owned {
	o := make([]task.Owned, len(tasks))
	for i, tk := range tasks {
		o[i] = task.Owned{ID: tk.ID, Claim: tk.Claim}
	}
	return o
}

func beat(t *testing.T, s *Store, o ...task.Owned) task.HeartbeatResult {
	t.Helper()
	r, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Worker: "w1", Owned: o, Lease: time.Minute})
	require.NoError(t, err)
	return r
}

func TestHeartbeatExtendsLeases(t *testing.T) {
	s := openStore(t)
	a := claimTasks(t, s, insertTasks(t, s, 2)...)
	b := claimTasks(t, s, insertTasks(t, s, 1)...)
	before := getTask(t, s, a[0].ID)
	require.Equal(t, task.HeartbeatResult{}, beat(t, s, owned(a[0], a[1], b[0])...))
	for _, tk := range []*task.Task{a[0], a[1], b[0]} {
		got := getTask(t, s, tk.ID)
		require.Greater(t, got.LeaseUntil, tk.LeaseUntil)
		require.Equal(t, got.LeaseUntil, got.CheckAt)
		requireSound(t, got)
	}
	got := getTask(t, s, a[0].ID)
	got.LeaseUntil, got.CheckAt = before.LeaseUntil, before.CheckAt
	require.Equal(t, before, got, "a beat is no transition")
	require.Equal(t, task.HeartbeatResult{}, beat(t, s), "nothing owned, nothing asked")
}

func TestHeartbeatNeverGoesBeyondTheDeadline(t *testing.T) {
	s := openStore(t)
	tk := claimTasks(t, s, insertTasks(t, s, 1, func(tk *task.Task) { tk.Timeout = 10 * time.Second })...)[0]
	beat(t, s, owned(tk)...)
	got := getTask(t, s, tk.ID)
	require.Equal(t, tk.DeadlineAt, got.LeaseUntil)
	require.Equal(t, tk.DeadlineAt, got.CheckAt)
}

func TestHeartbeatTellsOfACancel(t *testing.T) {
	s := openStore(t)
	tasks := claimTasks(t, s, insertTasks(t, s, 2)...)
	status, _, err := s.Cancel(t.Context(), tasks[0].ID, "ann")
	require.NoError(t, err)
	require.Equal(t, task.CancelAsked, status)
	require.Equal(t, task.HeartbeatResult{Cancelled: owned(tasks[0])}, beat(t, s, owned(tasks...)...))
	got := getTask(t, s, tasks[0].ID)
	require.Equal(t, got.CancelRequestedAt.Add(task.CancelGrace), got.LeaseUntil, "no beat extends it further")
}

func TestHeartbeatGuard(t *testing.T) {
	s := openStore(t)
	mine, foreign, ended, revived := claimTasks(t, s, insertTasks(t, s, 1)...)[0], claimTasks(t, s, insertTasks(t, s, 1)...)[0],
		claimTasks(t, s, insertTasks(t, s, 1)...)[0], claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	finishOne(t, s, ended, task.Succeeded)
	reviveTask(t, s, revived.ID)

	lost := []task.Owned{{ID: foreign.ID, Claim: "stolen"}, {ID: ended.ID, Claim: ended.Claim}, {ID: revived.ID, Claim: revived.Claim}, {ID: "gone", Claim: "x"}}
	before := make(map[string]*task.Task)
	for _, id := range []string{foreign.ID, ended.ID, revived.ID} {
		before[id] = getTask(t, s, id)
	}
	require.Equal(t, task.HeartbeatResult{Lost: lost}, beat(t, s, append(owned(mine), lost...)...))
	for id, b := range before {
		require.Equal(t, b, getTask(t, s, id), "a beat changes nothing that is not its own")
	}
	require.Greater(t, getTask(t, s, mine.ID).LeaseUntil, mine.LeaseUntil)
}

// The same worker runs the task again under another claim: the first execution is lost, the second is not.
func TestHeartbeatTellsTwoExecutionsOfOneWorkerApart(t *testing.T) {
	s := openStore(t)
	first := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	reviveTask(t, s, first.ID)
	second := claimTasks(t, s, first)[0]
	require.NotEqual(t, first.Claim, second.Claim)
	require.Equal(t, task.HeartbeatResult{Lost: owned(first)}, beat(t, s, owned(first, second)...))
	require.Equal(t, task.HeartbeatResult{}, beat(t, s, owned(second)...))
}

// A worker lost a task, claimed it again together with another, and beats for the old execution and for the other task: the id and
// the token of the new execution are both in the request, but not as a pair.
func TestHeartbeatLeavesAnExecutionAloneThatItDoesNotName(t *testing.T) {
	s := openStore(t)
	tasks := insertTasks(t, s, 2)
	old := claimTasks(t, s, tasks[0])[0]
	reviveTask(t, s, old.ID)
	again := claimTasks(t, s, tasks...)
	before := getTask(t, s, old.ID)
	require.Equal(t, owned(old), beat(t, s, owned(old, again[1])...).Lost)
	require.Equal(t, before, getTask(t, s, old.ID))
	require.True(t, getTask(t, s, again[1].ID).LeaseUntil.After(again[1].LeaseUntil), "the one that it names is extended")
	inTime := task.HeartbeatRequest{Worker: "w1", Owned: owned(old, again[1]), Lease: time.Hour, InTime: true}
	_, err := s.Heartbeat(t.Context(), inTime)
	require.NoError(t, err)
	require.Equal(t, before, getTask(t, s, old.ID), "nor is its deadline put off")
}

func TestHeartbeatWithoutAReply(t *testing.T) {
	cut := &replyCutter{}
	s := openStore(t, func(o *Options) { o.adjust = cut.dial })
	tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	cut.arm("update")
	_, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Worker: "w1", Owned: owned(tk), Lease: time.Minute})
	require.Error(t, err)
	require.Equal(t, task.HeartbeatResult{}, beat(t, s, owned(tk)...), "the next beat tells again")
}

func TestProgress(t *testing.T) {
	s := openStore(t)
	tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	o := owned(tk)[0]
	before := getTask(t, s, tk.ID)
	report := json.RawMessage(`{"$set":"$state","n":1e400}`)
	require.NoError(t, s.Progress(t.Context(), o, report))
	got := getTask(t, s, tk.ID)
	require.Equal(t, report, got.Progress)
	got.Progress = nil
	require.Equal(t, before, got, "progress is no transition")

	require.ErrorContains(t, s.Progress(t.Context(), o, json.RawMessage(`{`)), "not JSON")
	require.ErrorContains(t, s.Progress(t.Context(), o, make(json.RawMessage, task.MaxProgress+1)), "at most 8192")
	require.ErrorIs(t, s.Progress(t.Context(), task.Owned{ID: tk.ID, Claim: "stolen"}, json.RawMessage(`2`)), task.ErrLeaseLost)
	require.ErrorIs(t, s.Progress(t.Context(), task.Owned{ID: "gone", Claim: tk.Claim}, json.RawMessage(`2`)), task.ErrLeaseLost)
	finishOne(t, s, tk, task.Succeeded)
	require.ErrorIs(t, s.Progress(t.Context(), o, json.RawMessage(`2`)), task.ErrLeaseLost)
	require.Equal(t, report, getTask(t, s, tk.ID).Progress)
}

// reviveTask brings a running task back to pending, as the reaper does when its lease has ended.
func reviveTask(t *testing.T, s *Store, id string) {
	t.Helper()
	m := move{from: task.Running, to: task.Pending, reason: task.ReasonLeaseExpired, by: "reaper"}
	update, err := m.pipeline(bson.D{{Key: "workerId", Value: removed}, {Key: "leaseUntil", Value: removed},
		{Key: "deadlineAt", Value: removed}, {Key: "checkAt", Value: removed}, {Key: "losses", Value: add("$losses", int32(1))}})
	require.NoError(t, err)
	r, err := s.tasks.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "state", Value: "running"}}, update)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.MatchedCount)
}
