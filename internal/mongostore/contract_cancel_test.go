package mongostore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestCancelWhatDoesNotRun(t *testing.T) {
	s := openStore(t)
	for _, tk := range []*task.Task{
		insertTasks(t, s, 1)[0],
		insertTasks(t, s, 1, func(tk *task.Task) { tk.Held = true })[0],
	} {
		status, got, err := s.Cancel(t.Context(), tk.ID, "ann|$x")
		require.NoError(t, err)
		require.Equal(t, task.CancelDone, status)
		require.Equal(t, task.Cancelled, got.State)
		require.Equal(t, "operator/ann/$x", got.History[1].By)
		requireSound(t, got)
		require.Equal(t, got, getTask(t, s, tk.ID))

		status, again, err := s.Cancel(t.Context(), tk.ID, "bob")
		require.NoError(t, err)
		require.Equal(t, task.CancelDone, status)
		require.Equal(t, got, again, "once is enough")
	}
}

func TestCancelWhatRuns(t *testing.T) {
	s := openStore(t)
	tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	_, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Owned: owned(tk), Lease: time.Hour})
	require.NoError(t, err)
	status, got, err := s.Cancel(t.Context(), tk.ID, "")
	require.NoError(t, err)
	require.Equal(t, task.CancelAsked, status)
	require.Equal(t, task.Running, got.State)
	require.Equal(t, got.CancelRequestedAt.Add(task.CancelGrace), got.LeaseUntil)
	require.Equal(t, got.LeaseUntil, got.CheckAt)
	require.Equal(t, task.Entry{Seq: 3, At: got.CancelRequestedAt, From: task.Running, To: task.Running, Reason: task.ReasonCancelled,
		By: "operator", Attempt: 1, Claim: tk.Claim}, got.History[2])
	requireSound(t, got)

	status, again, err := s.Cancel(t.Context(), tk.ID, "bob")
	require.NoError(t, err)
	require.Equal(t, task.CancelAsked, status)
	require.Equal(t, got, again)

	finishOne(t, s, tk, task.CancelledByRequest)
	status, got, err = s.Cancel(t.Context(), tk.ID, "bob")
	require.NoError(t, err)
	require.Equal(t, task.CancelDone, status)
	requireSound(t, got)
}

func TestCancelDoesNotLengthenAShortLease(t *testing.T) {
	s := openStore(t)
	tk := insertTasks(t, s, 1)[0]
	held, err := s.Claim(t.Context(), task.ClaimRequest{IDs: []string{tk.ID}, Claim: newClaim(), Worker: "w1", Lease: 5 * time.Second})
	require.NoError(t, err)
	_, got, err := s.Cancel(t.Context(), tk.ID, "ann")
	require.NoError(t, err)
	require.Equal(t, held[0].LeaseUntil, got.LeaseUntil)
	require.Equal(t, held[0].LeaseUntil, got.CheckAt)
}

func TestCancelTooLate(t *testing.T) {
	s := openStore(t)
	for _, kind := range []task.OutcomeKind{task.Succeeded, task.FailedForGood} {
		tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
		finishOne(t, s, tk, kind)
		before := getTask(t, s, tk.ID)
		status, got, err := s.Cancel(t.Context(), tk.ID, "ann")
		require.NoError(t, err)
		require.Equal(t, task.CancelTooLate, status)
		require.Equal(t, before, got)
		require.Equal(t, before, getTask(t, s, tk.ID))
	}
	status, got, err := s.Cancel(t.Context(), "gone", "ann")
	require.NoError(t, err)
	require.Equal(t, task.CancelNotFound, status)
	require.Nil(t, got)
}

// What was read is no longer so when the cancel arrives: nothing changes.
func TestCancelGuard(t *testing.T) {
	s := openStore(t)
	stale := insertTasks(t, s, 1)[0]
	first := claimTasks(t, s, stale)[0]
	before := getTask(t, s, stale.ID)
	require.NoError(t, s.tryCancel(t.Context(), stale, "operator"))
	require.Equal(t, before, getTask(t, s, stale.ID), "read as pending, runs by now")

	reviveTask(t, s, stale.ID)
	claimTasks(t, s, stale)
	before = getTask(t, s, stale.ID)
	require.NoError(t, s.tryCancel(t.Context(), first, "operator"))
	require.Equal(t, before, getTask(t, s, stale.ID), "another execution runs by now")

	second := getTask(t, s, stale.ID)
	finishOne(t, s, second, task.Succeeded)
	before = getTask(t, s, stale.ID)
	require.NoError(t, s.tryCancel(t.Context(), second, "operator"))
	require.Equal(t, before, getTask(t, s, stale.ID), "it has ended by now")
}

// Claims, reports and cancels at once: each task ends in one way, and what Cancel answered is what happened.
// Of two that ask at once for the end of the same execution, the second changes nothing: the grace does not begin again.
func TestCancelIsAskedForOnce(t *testing.T) {
	s := openStore(t)
	running := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	require.NoError(t, s.tryCancel(t.Context(), running, "operator/first"))
	asked := getTask(t, s, running.ID)
	require.NoError(t, s.tryCancel(t.Context(), running, "operator/second"))
	require.Equal(t, asked, getTask(t, s, running.ID))
}

func TestCancelRace(t *testing.T) {
	s := openStore(t)
	for range 30 {
		tk := insertTasks(t, s, 1)[0]
		var status task.CancelStatus
		var wg sync.WaitGroup
		wg.Go(func() {
			held, err := s.Claim(context.Background(), task.ClaimRequest{IDs: []string{tk.ID}, Claim: newClaim(), Worker: "w1", Lease: time.Minute})
			if err != nil {
				t.Errorf("claim: %v", err)
			} else if len(held) == 1 {
				if _, err := s.Finish(context.Background(), []task.Outcome{outcomeOf(held[0], task.Released)}); err != nil {
					t.Errorf("finish: %v", err)
				}
			}
		})
		wg.Go(func() {
			var err error
			if status, _, err = s.Cancel(context.Background(), tk.ID, "ann"); err != nil {
				t.Errorf("cancel: %v", err)
			}
		})
		wg.Wait()
		got := getTask(t, s, tk.ID)
		requireSound(t, got)
		require.Contains(t, []task.CancelStatus{task.CancelDone, task.CancelAsked}, status)
		require.Equal(t, task.Cancelled, got.State, "whoever was first, it does not go back to pending")
	}
}
