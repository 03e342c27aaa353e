package mongostore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// The database's clock has jumped ahead, past the deadline: what by the worker's clock has time left goes on, the rest does not.
func TestHeartbeatPutsADeadlineOffThatOnlyTheClockHasPassed(t *testing.T) {
	s := openStore(t)
	const lease = time.Minute
	passed := serverTime(t, s).Add(-time.Hour).Truncate(time.Millisecond)
	tasks := claimTasks(t, s, insertTasks(t, s, 3)...)
	for _, tk := range tasks[:2] {
		patch(t, s, tk.ID, bson.D{{Key: "deadlineAt", Value: passed}})
	}
	for i, inTime := range []bool{true, false, true} {
		_, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Worker: "w1", Owned: owned(tasks[i]), Lease: lease, InTime: inTime})
		require.NoError(t, err)
	}
	now := serverTime(t, s)
	put := getTask(t, s, tasks[0].ID)
	require.WithinDuration(t, now.Add(2*lease), put.DeadlineAt, 10*time.Second)
	require.WithinDuration(t, now.Add(lease), put.LeaseUntil, 10*time.Second)
	require.Equal(t, put.LeaseUntil, put.CheckAt)
	over := getTask(t, s, tasks[1].ID)
	require.Equal(t, passed, over.DeadlineAt)
	require.Equal(t, passed, over.LeaseUntil)
	far := getTask(t, s, tasks[2].ID)
	require.Equal(t, tasks[2].DeadlineAt, far.DeadlineAt, "half an hour ahead it stays where it is")
	require.WithinDuration(t, now.Add(lease), far.LeaseUntil, 10*time.Second)
}

func TestHeartbeatInTimeStillEndsWithACancel(t *testing.T) {
	s := openStore(t)
	tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	_, _, err := s.Cancel(t.Context(), tk.ID, "ann")
	require.NoError(t, err)
	result, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Worker: "w1", Owned: owned(tk), Lease: time.Minute, InTime: true})
	require.NoError(t, err)
	require.Equal(t, task.HeartbeatResult{Cancelled: owned(tk)}, result)
	got := getTask(t, s, tk.ID)
	require.Equal(t, got.CancelRequestedAt.Add(task.CancelGrace), got.LeaseUntil)
}

func serverTime(t *testing.T, s *Store) time.Time {
	t.Helper()
	now, _, err := s.ServerTime(t.Context())
	require.NoError(t, err)
	return now
}
