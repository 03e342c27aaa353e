package mongostore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestClaimTakesOwnership(t *testing.T) {
	s := openStore(t)
	tasks := insertTasks(t, s, 3)
	claim := newClaim()
	ids := []string{tasks[2].ID, "unknown", tasks[0].ID, tasks[1].ID}
	got, err := s.Claim(t.Context(), task.ClaimRequest{IDs: ids, Claim: claim, Worker: "w$1|x", Lease: 20 * time.Second})
	require.NoError(t, err)
	require.Equal(t, []string{tasks[2].ID, tasks[0].ID, tasks[1].ID}, idsOf(got), "in the order asked for")
	for _, c := range got {
		require.Empty(t, c.History, "a worker needs no history")
		require.Equal(t, tasks[0].Payload, c.Payload)
		stored := getTask(t, s, c.ID)
		requireSound(t, stored)
		require.Equal(t, task.Running, stored.State)
		require.Equal(t, claim, stored.Claim)
		require.Equal(t, "w$1|x", stored.WorkerID)
		require.Equal(t, 1, stored.Attempts)
		require.Equal(t, int64(2), stored.Seq)
		require.Equal(t, stored.StartedAt.Add(20*time.Second), stored.LeaseUntil)
		require.Equal(t, stored.StartedAt.Add(stored.Timeout+task.TimeoutGrace), stored.DeadlineAt)
		require.Equal(t, task.Entry{Seq: 2, At: stored.StartedAt, From: task.Pending, To: task.Running, Reason: task.ReasonClaimed,
			By: "worker/w$1/x", Attempt: 1, Claim: claim}, stored.History[1])
		stored.History, stored.Change, stored.SubmitHash = nil, "", ""
		require.Equal(t, stored, c, "what is returned is what is stored")
	}
}

func TestClaimLeaseEndsWithTheDeadline(t *testing.T) {
	s := openStore(t)
	tk := insertTasks(t, s, 1, func(tk *task.Task) { tk.Timeout = time.Second })[0]
	got := claimTasks(t, s, tk)[0]
	require.Equal(t, got.StartedAt.Add(time.Second+task.TimeoutGrace), got.DeadlineAt)
	require.Equal(t, got.DeadlineAt, got.LeaseUntil)
	require.Equal(t, got.DeadlineAt, got.CheckAt)
}

func TestClaimGuard(t *testing.T) {
	s := openStore(t)
	now, _, err := s.Now()
	require.NoError(t, err)
	for name, spoil := range map[string]bson.D{
		"running":         {{Key: "state", Value: "running"}},
		"waiting":         {{Key: "state", Value: "waiting"}},
		"success":         {{Key: "state", Value: "success"}},
		"failed":          {{Key: "state", Value: "failed"}},
		"cancelled":       {{Key: "state", Value: "cancelled"}},
		"not due":         {{Key: "scheduledAt", Value: now.Add(5 * time.Second)}},
		"expired":         {{Key: "expiresAt", Value: now.Add(-time.Millisecond)}},
		"expires now":     {{Key: "expiresAt", Value: now}},
		"cancel asked":    {{Key: "cancelRequestedAt", Value: now}},
		"null is no date": {{Key: "scheduledAt", Value: nil}},
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := insertTasks(t, s, 1)[0], insertTasks(t, s, 1)[0]
			patch(t, s, bad.ID, spoil)
			before := getTask(t, s, bad.ID)
			got, err := s.Claim(t.Context(), task.ClaimRequest{IDs: []string{bad.ID, good.ID}, Claim: newClaim(), Worker: "w1", Lease: time.Minute})
			require.NoError(t, err)
			require.Equal(t, []string{good.ID}, idsOf(got))
			require.Equal(t, before, getTask(t, s, bad.ID))
		})
	}
	t.Run("a later expiry is no obstacle", func(t *testing.T) {
		tk := insertTasks(t, s, 1, func(tk *task.Task) { tk.ExpiresAt = now.Add(time.Hour).Truncate(time.Millisecond) })[0]
		got := claimTasks(t, s, tk)[0]
		require.Equal(t, got.LeaseUntil, got.CheckAt, "while it runs, the lease is what is checked")
	})
	t.Run("nothing to claim", func(t *testing.T) {
		got, err := s.Claim(t.Context(), task.ClaimRequest{Claim: newClaim(), Worker: "w1", Lease: time.Minute})
		require.NoError(t, err)
		require.Empty(t, got)
	})
}

// Whatever claimers race for, each task has one owner.
func TestClaimRace(t *testing.T) {
	s := openStore(t)
	const claimers, rounds, batch = 8, 12, 50
	owners := make(map[string]string)
	var mu sync.Mutex
	for range rounds {
		ids := idsOf(insertTasks(t, s, batch))
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range claimers {
			wg.Go(func() {
				claim := newClaim()
				<-start
				got, err := s.Claim(context.Background(), task.ClaimRequest{IDs: ids, Claim: claim, Worker: claim, Lease: time.Minute})
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, tk := range got {
					if other, taken := owners[tk.ID]; taken {
						t.Errorf("%s belongs to %s and to %s", tk.ID, other, claim)
					}
					owners[tk.ID] = claim
				}
			})
		}
		close(start)
		wg.Wait()
	}
	require.Len(t, owners, rounds*batch)
	for id, claim := range owners {
		tk := getTask(t, s, id)
		require.Equal(t, claim, tk.Claim)
		require.Equal(t, 1, tk.Attempts)
		requireSound(t, tk)
	}
}

// When a reply is lost the claim says so, and the token finds what is held.
func TestClaimUnknownOutcome(t *testing.T) {
	for _, command := range []string{"update", "find"} {
		t.Run(command, func(t *testing.T) {
			cut := &replyCutter{}
			s := openStore(t, func(o *Options) { o.adjust = func(c *options.ClientOptions) { cut.dial(c); c.SetRetryReads(false) } })
			tasks := insertTasks(t, s, 3)
			r := task.ClaimRequest{IDs: idsOf(tasks), Claim: newClaim(), Worker: "w1", Lease: time.Minute}
			cut.arm(command)
			_, err := s.Claim(t.Context(), r)
			require.ErrorIs(t, err, task.ErrUnknownOutcome)
			require.True(t, cut.fired())
			held, err := s.Resolve(t.Context(), r.Claim, r.IDs)
			require.NoError(t, err)
			require.Equal(t, r.IDs, idsOf(held))
		})
	}
}

func TestClaimCutShortByItsCaller(t *testing.T) {
	s := openStore(t)
	tk := insertTasks(t, s, 1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Claim(ctx, task.ClaimRequest{IDs: []string{tk.ID}, Claim: newClaim(), Worker: "w1", Lease: time.Minute})
	require.ErrorIs(t, err, task.ErrUnknownOutcome)
	require.ErrorIs(t, err, context.Canceled)
}

// Resolve shows only what runs under the token.
func TestResolve(t *testing.T) {
	s := openStore(t)
	mine, ended, foreign := insertTasks(t, s, 1)[0], insertTasks(t, s, 1)[0], insertTasks(t, s, 1)[0]
	held := claimTasks(t, s, mine, ended)
	claimTasks(t, s, foreign)
	finishOne(t, s, held[1], task.Succeeded)
	got, err := s.Resolve(t.Context(), held[0].Claim, idsOf([]*task.Task{foreign, ended, mine}))
	require.NoError(t, err)
	require.Equal(t, []string{mine.ID}, idsOf(got))
}

// The look behind a claim that won everything asks for the ids alone on some servers: what was revived and taken by another since, or
// has ended, is not returned.
func TestFindWonLeavesOutWhatHasMovedOn(t *testing.T) {
	for _, secantus := range []bool{true, false} {
		s := openStore(t)
		s.secantus = secantus
		held := claimTasks(t, s, insertTasks(t, s, 3)...)
		reviveTask(t, s, held[1].ID)
		claimTasks(t, s, held[1])
		finishOne(t, s, held[2], task.Succeeded)
		got, err := s.findWon(t.Context(), held[0].Claim, idsOf(held))
		require.NoError(t, err)
		require.Equal(t, idsOf(held[:1]), idsOf(got))
	}
}

// Without a trusted time nothing that depends on it is written.
func TestClaimAndInsertNeedTheTime(t *testing.T) {
	s := openStore(t)
	tk := insertTasks(t, s, 1)[0]
	s.clock.mu.Lock()
	s.clock.known = false
	s.clock.mu.Unlock()
	_, err := s.Claim(t.Context(), task.ClaimRequest{IDs: []string{tk.ID}, Claim: newClaim(), Worker: "w1", Lease: time.Minute})
	require.ErrorIs(t, err, task.ErrClock)
	require.NotErrorIs(t, err, task.ErrUnknownOutcome)
	_, err = s.Insert(t.Context(), []*task.Task{newTask()})
	require.ErrorIs(t, err, task.ErrClock)
	require.Equal(t, task.Pending, getTask(t, s, tk.ID).State)
}
