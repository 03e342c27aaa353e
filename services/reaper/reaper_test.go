package main

import (
	"encoding/json"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// TestReportsRaceWithRevivals has 1,000 tasks reported just when their leases end, under a reaper and a former one that does not
// know that it leads no more. Whatever was answered with "accepted" must be final, and what was refused must have changed
// nothing.
func TestReportsRaceWithRevivals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.trusting(r.reaper(3*time.Second, "AX_REAPER_GRACE=0s"))
	r.formerLeader()
	const lease = 1500 * time.Millisecond
	ids := r.submit("race", 1000)
	var all sync.WaitGroup
	var mu sync.Mutex
	accepted, refused := map[string]int64{}, map[string]string{} // seq of the success, claim of the refused report
	for len(ids) > 0 {
		batch := ids[:100]
		ids = ids[100:]
		claimed := r.claim("w1", lease, batch...)
		all.Go(func() {
			now, _, err := r.db.Now()
			require.NoError(t, err)
			over := claimed[0].LeaseUntil.Sub(now)
			for len(claimed) > 0 {
				part := claimed[:5]
				claimed = claimed[5:]
				all.Go(func() {
					after(over - 200*time.Millisecond + rand.N(800*time.Millisecond))
					var outcomes []task.Outcome
					for _, c := range part {
						outcomes = append(outcomes, task.Outcome{
							Owned: task.Owned{ID: c.ID, Claim: c.Claim}, Worker: "w1", Kind: task.Succeeded, Result: json.RawMessage(`1`), Task: c,
						})
					}
					answers, err := r.db.Finish(t.Context(), outcomes)
					require.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					for i, answer := range answers {
						if answer == nil {
							accepted[part[i].ID] = 3
						} else {
							require.ErrorIs(t, answer, task.ErrLeaseLost)
							refused[part[i].ID] = part[i].Claim
						}
					}
				})
			}
		})
	}
	all.Wait()
	t.Logf("%d reports accepted, %d refused", len(accepted), len(refused))
	require.Greater(t, len(accepted), 50, "the race was none")
	require.Greater(t, len(refused), 50, "the race was none")
	for id, claim := range refused {
		got, _ := r.awaitChange(id, task.ReasonLeaseExpired)
		for _, h := range got.History {
			require.False(t, h.Reason == task.ReasonSucceeded && h.Claim == claim, "%s: refused and yet recorded", id)
		}
	}
	for id, seq := range accepted {
		got := r.get(id)
		require.Equal(t, task.Success, got.State, id)
		require.Equal(t, seq, got.Seq, "%s changed after its report was accepted", id)
		require.Zero(t, got.Losses)
	}
}

func TestLostExecutionsAreCountedApartFromFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.reaper(3 * time.Second)
	r.trusting(s)
	once := r.submit("once", 1, func(s *events.Submit) { n := 0; s.MaxLosses = &n })
	last := r.submit("last", 1, func(s *events.Submit) { a, l := 1, 2; s.MaxAttempts, s.MaxLosses = &a, &l })

	r.claim("w1", time.Second, once...)
	got, _ := r.awaitChange(once[0], task.ReasonWorkerLost)
	require.Equal(t, task.Failed, got.State, "at most once: no second execution")
	require.Equal(t, []int{1, 0, 1}, []int{got.Attempts, got.Failures, got.Losses})
	require.NotNil(t, got.LastError)

	for losses := 1; losses <= 3; losses++ { // the only attempt: losses are not failures
		r.claimWhenDue("w1", time.Second, last[0])
		reason := task.ReasonLeaseExpired
		if losses == 3 {
			reason = task.ReasonWorkerLost
		}
		stacktest.Eventually(t, patience, "its lease is over", func() bool {
			got = r.get(last[0])
			return got.Losses == losses
		})
		require.Equal(t, reason, got.History[len(got.History)-1].Reason)
	}
	require.Equal(t, task.Failed, got.State)
	require.Zero(t, got.Failures)
	require.EqualValues(t, 2, stacktest.Metric(t, s, "ax_reaper_revived_total", "worker_lost"))
	require.EqualValues(t, 2, stacktest.Metric(t, s, "ax_reaper_revived_total", "lease_expired"))
}

func TestCancelEndsWhatIgnoresIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.trusting(r.reaper(3 * time.Second))
	deaf := r.submit("deaf", 1) // its worker lives and beats, its handler ignores the cancel
	gone := r.submit("gone", 1) // its worker is gone
	lost, _ := r.beat("w1", 3*time.Second, r.claim("w1", 3*time.Second, deaf...))
	r.claim("w2", 3*time.Second, gone...)
	var asked time.Time
	for _, id := range append(deaf, gone...) {
		status, got, err := r.db.Cancel(t.Context(), id, "somebody")
		require.NoError(t, err)
		require.Equal(t, task.CancelAsked, status)
		asked = got.CancelRequestedAt
	}
	got, at := r.awaitChange(gone[0], task.ReasonCancelled)
	stacktest.Eventually(t, patience, "it is cancelled at the end of its lease", func() bool {
		got = r.get(gone[0])
		return got.State == task.Cancelled
	})
	require.Less(t, got.FinishedAt.Sub(at), 15*time.Second)

	stacktest.Eventually(t, patience, "it is cancelled though its worker goes on", func() bool {
		got = r.get(deaf[0])
		return got.State == task.Cancelled
	})
	require.GreaterOrEqual(t, got.FinishedAt.Sub(asked), task.CancelGrace)
	require.Less(t, got.FinishedAt.Sub(asked), task.CancelGrace+20*time.Second)
	stacktest.Eventually(t, patience, "its worker is told that the lease is lost", func() bool { return lost.Load() == 1 })
}

func TestDeadlinesAndExpiryAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.reaper(3 * time.Second)
	r.trusting(s)
	timeout := "500ms"
	slow := r.submit("slow", 1, func(s *events.Submit) { s.Timeout = &timeout })
	now, _, err := r.db.Now()
	require.NoError(t, err)
	soon := now.Add(2 * time.Second).Format(time.RFC3339Nano)
	late := r.submit("late", 20, func(s *events.Submit) { s.ExpiresAt = &soon })

	_, stop := r.beat("w1", 3*time.Second, r.claim("w1", 3*time.Second, slow...)) // beats for ever: only the deadline ends it
	got, at := r.awaitChange(slow[0], task.ReasonTimeout)
	require.GreaterOrEqual(t, at.Sub(got.StartedAt), 500*time.Millisecond+task.TimeoutGrace)
	require.Equal(t, task.Pending, got.State)
	require.Equal(t, 1, got.Losses, "the reaper's timeouts are losses")
	require.Zero(t, got.Failures)
	stop()

	for _, id := range late {
		got, at := r.awaitChange(id, task.ReasonExpired)
		require.Equal(t, task.Failed, got.State)
		require.False(t, at.Before(got.ExpiresAt))
	}
	require.EqualValues(t, len(late), stacktest.Metric(t, s, "ax_reaper_expired_total"))
}

func TestWorkerThatStoppedBeatingIsForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.reaper(3 * time.Second)
	r.trusting(s)
	require.NoError(t, r.db.BeatWorker(t.Context(), task.WorkerInfo{ID: "gone", Host: "h", Types: []string{"email"}, Slots: 1}))
	stacktest.Eventually(t, patience, "only the one that beats is left", func() bool {
		require.NoError(t, r.db.BeatWorker(t.Context(), task.WorkerInfo{ID: "alive", Host: "h", Types: []string{"email"}, Slots: 1}))
		workers, err := r.db.Workers(t.Context())
		require.NoError(t, err)
		return len(workers) == 1 && workers[0].ID == "alive"
	})
	require.EqualValues(t, 1, stacktest.Metric(t, s, "ax_reaper_workers_lost_total"))
}
