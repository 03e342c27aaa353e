package mongostore

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

func revive(t *testing.T, s *Store, read ...*task.Task) []string {
	t.Helper()
	ids, err := s.Revive(t.Context(), read, "r1")
	require.NoError(t, err)
	return ids
}

// sweepOf reads the tasks as a sweep does that comes when their leases are over.
func sweepOf(t *testing.T, s *Store, tasks ...*task.Task) []*task.Task {
	t.Helper()
	all, err := s.SweepCheck(t.Context(), serverNow(t, s).Add(time.Hour), 10_000)
	require.NoError(t, err)
	ids := idsOf(tasks)
	all = slices.DeleteFunc(all, func(tk *task.Task) bool { return !slices.Contains(ids, tk.ID) })
	require.Len(t, all, len(tasks))
	return all
}

func TestSweepCheckFindsWhatIsDue(t *testing.T) {
	s := openStore(t)
	now := serverNow(t, s).Truncate(time.Millisecond).UTC()
	expires := func(at time.Time, held bool) *task.Task {
		return insertTasks(t, s, 1, func(tk *task.Task) { tk.ExpiresAt, tk.Held = at, held })[0]
	}
	insertTasks(t, s, 1) // never to be looked at
	pending := expires(now.Add(5*time.Second), false)
	running := claimTasks(t, s, expires(now.Add(time.Hour), false))[0]
	waiting := expires(now.Add(time.Hour), true) // has its next look soon
	later := expires(now.Add(2*time.Hour), false)
	ended := claimTasks(t, s, expires(now.Add(time.Minute), false))[0]
	finishOne(t, s, ended, task.Succeeded)
	patch(t, s, running.ID, bson.D{{Key: "leaseUntil", Value: now.Add(time.Second)}, {Key: "checkAt", Value: now.Add(time.Second)}})
	patch(t, s, waiting.ID, bson.D{{Key: "checkAt", Value: now.Add(2 * time.Second)}})

	for _, c := range []struct {
		due   time.Time
		limit int
		want  []string
	}{
		{now, 10, nil},
		{now.Add(time.Second), 10, []string{running.ID}}, // the very time counts
		{now.Add(time.Minute), 10, []string{running.ID, waiting.ID, pending.ID}},
		{now.Add(time.Minute), 2, []string{running.ID, waiting.ID}},
		{now.Add(2 * time.Hour), 10, []string{running.ID, waiting.ID, pending.ID, later.ID}},
	} {
		found, err := s.SweepCheck(t.Context(), c.due, c.limit)
		require.NoError(t, err)
		require.ElementsMatch(t, c.want, idsOf(found))
		require.True(t, slices.IsSortedFunc(found, func(a, b *task.Task) int { return a.CheckAt.Compare(b.CheckAt) }))
		for _, tk := range found {
			require.Nil(t, tk.Payload)
			require.Empty(t, tk.History)
			full := getTask(t, s, tk.ID)
			full.Payload, full.History, full.Change = nil, nil, ""
			require.Equal(t, full, tk, "all else is there to decide by")
		}
	}
}

// Who reads the history must look for the fault where it is: in a handler that does not stop, or in a worker that is gone.
func TestReviveOfACancelledExecutionSaysWhatWentWrong(t *testing.T) {
	s := openStore(t)
	claimed := claimTasks(t, s, insertTasks(t, s, 2)...)
	deaf, gone := claimed[0], claimed[1]
	over := serverNow(t, s).Add(10 * time.Second).Truncate(time.Millisecond)
	patch(t, s, gone.ID, bson.D{{Key: "leaseUntil", Value: over}, {Key: "checkAt", Value: over}}) // no beat comes any more
	for _, tk := range claimed {
		_, _, err := s.Cancel(t.Context(), tk.ID, "ann")
		require.NoError(t, err)
	}
	_, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Worker: "w1", Owned: owned(deaf), Lease: time.Hour})
	require.NoError(t, err)
	revive(t, s, sweepOf(t, s, claimed...)...)
	require.Equal(t, "the handler on worker "+deaf.WorkerID+" did not stop within 30s after the cancel", getTask(t, s, deaf.ID).LastError.Message)
	require.Equal(t, "worker "+gone.WorkerID+" stopped extending the lease", getTask(t, s, gone.ID).LastError.Message)
}

// What becomes of executions whose lease is over.
func TestReviveKinds(t *testing.T) {
	s := openStore(t)
	soon := func(tk *task.Task) { tk.Timeout = time.Second } // its deadline ends the lease
	expiry := serverNow(t, s).Add(time.Hour).Truncate(time.Millisecond).UTC()
	for _, c := range []struct {
		name      string
		change    func(*task.Task)
		cancelled bool
		to        task.State
		reason    task.Reason
		cause     task.Reason
	}{
		{"lease over", nil, false, task.Pending, task.ReasonLeaseExpired, task.ReasonLeaseExpired},
		{"with an expiry", func(tk *task.Task) { tk.ExpiresAt = expiry }, false, task.Pending, task.ReasonLeaseExpired, task.ReasonLeaseExpired},
		{"deadline over", soon, false, task.Pending, task.ReasonTimeout, task.ReasonTimeout},
		{"losses used up", func(tk *task.Task) { tk.Losses = 3 }, false, task.Failed, task.ReasonWorkerLost, task.ReasonLeaseExpired},
		{"one loss left", func(tk *task.Task) { tk.Losses = 2 }, false, task.Pending, task.ReasonLeaseExpired, task.ReasonLeaseExpired},
		{"losses used up at the deadline", func(tk *task.Task) { soon(tk); tk.Losses = 3 }, false, task.Failed, task.ReasonWorkerLost, task.ReasonTimeout},
		{"at most once", func(tk *task.Task) { tk.MaxLosses = 0 }, false, task.Failed, task.ReasonWorkerLost, task.ReasonLeaseExpired},
		{"failures do not count", func(tk *task.Task) { tk.Failures, tk.MaxAttempts = 2, 3 }, false, task.Pending, task.ReasonLeaseExpired, task.ReasonLeaseExpired},
		{"cancelled", nil, true, task.Cancelled, task.ReasonCancelled, task.ReasonLeaseExpired},
		{"cancelled at the deadline", soon, true, task.Cancelled, task.ReasonCancelled, task.ReasonTimeout},
		{"cancelled with losses used up", func(tk *task.Task) { tk.MaxLosses = 0 }, true, task.Cancelled, task.ReasonCancelled, task.ReasonLeaseExpired},
		{"cancelled with an expiry", func(tk *task.Task) { tk.ExpiresAt = expiry }, true, task.Cancelled, task.ReasonCancelled, task.ReasonLeaseExpired},
	} {
		for _, late := range []bool{false, true} { // the cancel may come between the reading and the write
			if late && !c.cancelled {
				continue
			}
			t.Run(fmt.Sprintf("%s,late=%v", c.name, late), func(t *testing.T) {
				change := func(tk *task.Task) {
					if c.change != nil {
						c.change(tk)
					}
				}
				claimed := claimTasks(t, s, insertTasks(t, s, 3, change)...)
				// A cancel must not shorten these leases: the reading has to stay as good as it was.
				for _, tk := range claimed {
					over := serverNow(t, s).Add(10 * time.Second).Truncate(time.Millisecond)
					if over.Before(tk.DeadlineAt) {
						patch(t, s, tk.ID, bson.D{{Key: "leaseUntil", Value: over}, {Key: "checkAt", Value: over}})
					}
				}
				cancel := func() {
					for _, tk := range claimed {
						status, _, err := s.Cancel(t.Context(), tk.ID, "ann")
						require.NoError(t, err)
						require.Equal(t, task.CancelAsked, status)
					}
				}
				if c.cancelled && !late {
					cancel()
				}
				read := sweepOf(t, s, claimed...)
				if late {
					cancel()
				}
				require.ElementsMatch(t, idsOf(claimed), revive(t, s, read...))
				require.Empty(t, revive(t, s, read...), "once")

				for _, before := range read {
					tk := getTask(t, s, before.ID)
					requireSound(t, tk)
					require.Equal(t, c.to, tk.State)
					last := tk.History[len(tk.History)-1]
					require.Equal(t, c.reason, last.Reason)
					require.Equal(t, "reaper/r1", last.By)
					require.Equal(t, before.Claim, last.Claim)
					require.Equal(t, c.cause, tk.LastError.Cause)
					require.Equal(t, tk.LastError, last.Error)
					require.Equal(t, before.Losses+1, tk.Losses)
					require.Equal(t, before.Failures, tk.Failures)
					require.Equal(t, before.Attempts, tk.Attempts)
					if delay := task.LossDelay(tk.ID, tk.Losses); delay > 0 && c.to == task.Pending {
						require.Equal(t, last.At.Add(delay), tk.ScheduledAt, "apart from others that were lost with it")
						patch(t, s, tk.ID, bson.D{{Key: "scheduledAt", Value: before.ScheduledAt}})
					} else {
						require.Equal(t, before.ScheduledAt, tk.ScheduledAt, "it stands before what fell due later")
					}
					if c.to == task.Pending {
						require.Equal(t, tk.ExpiresAt, tk.CheckAt)
						again := claimTasks(t, s, tk)[0]
						require.Equal(t, before.Attempts+1, again.Attempts)
					}
				}
			})
		}
	}
}

// Each part of the guard alone keeps a revival from an execution that is not, or no longer, the one that was read.
func TestReviveGuard(t *testing.T) {
	s := openStore(t)
	for name, change := range map[string]func(t *testing.T, tk *task.Task){
		"beaten in the last moment": func(t *testing.T, tk *task.Task) {
			r, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Worker: "w1", Owned: owned(tk), Lease: time.Hour})
			require.NoError(t, err)
			require.Empty(t, r.Lost)
		},
		"reported":    func(t *testing.T, tk *task.Task) { finishOne(t, s, tk, task.Succeeded) },
		"handed back": func(t *testing.T, tk *task.Task) { finishOne(t, s, tk, task.Released) },
		"revived by another": func(t *testing.T, tk *task.Task) {
			ids, err := s.Revive(t.Context(), []*task.Task{tk}, "r2")
			require.NoError(t, err)
			require.Equal(t, []string{tk.ID}, ids)
		},
		"revived and taken by another worker, with a lease as long": func(t *testing.T, tk *task.Task) {
			reviveTask(t, s, tk.ID)
			claimTasks(t, s, tk)
			patch(t, s, tk.ID, bson.D{{Key: "leaseUntil", Value: tk.LeaseUntil}, {Key: "checkAt", Value: tk.LeaseUntil}})
		},
		"gone": func(t *testing.T, tk *task.Task) { archiveTask(t, s, tk.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
			change(t, tk)
			before := getTask(t, s, tk.ID)
			require.Empty(t, revive(t, s, tk))
			require.Equal(t, before, getTask(t, s, tk.ID))
		})
	}
	for _, tk := range []*task.Task{{ID: "a", State: task.Pending}, {ID: "a", State: task.Success}} {
		_, err := s.Revive(t.Context(), []*task.Task{tk}, "r1")
		require.ErrorContains(t, err, "not running")
	}
}

// Of a group of executions that are alike, those that changed meanwhile are left out, and the answer tells which.
func TestRevivePartOfAGroup(t *testing.T) {
	s := openStore(t)
	read := claimTasks(t, s, insertTasks(t, s, 1500)[:1000]...)
	more, err := s.Claim(t.Context(), task.ClaimRequest{IDs: idsOf(insertTasks(t, s, 500)), Claim: read[0].Claim + "b", Worker: "w1", Lease: task.DefaultLease})
	require.NoError(t, err)
	read = append(read, more...)
	finish(t, s, outcomesOf(read[100:120])...)
	want := slices.Concat(idsOf(read[:100]), idsOf(read[120:]))
	got := revive(t, s, read...)
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, got)
	require.Empty(t, revive(t, s))
}

// Reports and revivals of the same 1,000 executions meet: each has one end. What was answered as recorded stands, what was revived
// refuses its report.
func TestReviveRace(t *testing.T) {
	s := openStore(t)
	const all = 1000
	var read []*task.Task
	for part := range slices.Chunk(insertTasks(t, s, all), 100) {
		read = append(read, claimTasks(t, s, part...)...)
	}
	byID := make(map[string]*task.Task, all)
	for _, tk := range read {
		byID[tk.ID] = tk
	}
	answers := make([]error, all)
	revived := make([][]string, 3)
	start := make(chan struct{})
	var racers sync.WaitGroup
	const each = all / 8
	for w := range 8 {
		racers.Go(func() {
			<-start
			for i := w * each; i < (w+1)*each; i += 5 {
				got, err := s.Finish(t.Context(), outcomesOf(read[i:i+5]))
				if err != nil {
					t.Errorf("finish: %v", err)
					return
				}
				copy(answers[i:], got)
			}
		})
	}
	for r := range revived {
		racers.Go(func() {
			<-start
			for i := range all / 10 {
				i = (i*37 + r*17) % (all / 10) // each from another end
				ids, err := s.Revive(t.Context(), read[i*10:i*10+10], fmt.Sprint("r", r))
				if err != nil {
					t.Errorf("revive: %v", err)
					return
				}
				revived[r] = append(revived[r], ids...)
			}
		})
	}
	close(start)
	racers.Wait()

	lost := 0
	for i, tk := range read {
		now := getTask(t, s, tk.ID)
		requireSound(t, now)
		require.Len(t, now.History, 3, "one end")
		if answers[i] == nil {
			require.Equal(t, task.Success, now.State)
			require.Equal(t, outcomeOf(byID[tk.ID], task.Succeeded).Result, now.Result)
			continue
		}
		lost++
		require.ErrorIs(t, answers[i], task.ErrLeaseLost)
		require.Equal(t, task.Pending, now.State)
		require.Equal(t, task.ReasonLeaseExpired, now.History[2].Reason)
		require.Equal(t, 1, now.Losses)
	}
	t.Logf("%d recorded, %d revived", all-lost, lost)
	ids := slices.Concat(revived...)
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), lost, "each revival is told by one reaper")
	require.NotZero(t, lost, "no race took place")
	require.NotEqual(t, all, lost, "no race took place")
}

func TestExpire(t *testing.T) {
	s := openStore(t)
	soon := serverNow(t, s).Add(time.Minute).Truncate(time.Millisecond).UTC()
	pending := insertTasks(t, s, 3, func(tk *task.Task) { tk.ExpiresAt = soon })
	waiting := insertTasks(t, s, 2, func(tk *task.Task) { tk.ExpiresAt, tk.Held = soon, true })
	read := sweepOf(t, s, slices.Concat(pending, waiting)...)
	ids, err := s.Expire(t.Context(), read, "r1")
	require.NoError(t, err)
	require.ElementsMatch(t, idsOf(read), ids)
	for _, tk := range read {
		now := getTask(t, s, tk.ID)
		requireSound(t, now)
		require.Equal(t, task.Failed, now.State)
		last := now.History[len(now.History)-1]
		require.Equal(t, task.ReasonExpired, last.Reason)
		require.Equal(t, tk.State, last.From)
		require.Equal(t, "reaper/r1", last.By)
		require.Zero(t, now.Losses)
	}
	ids, err = s.Expire(t.Context(), read, "r1")
	require.NoError(t, err)
	require.Empty(t, ids, "once")
}

func TestExpireGuard(t *testing.T) {
	s := openStore(t)
	soon := serverNow(t, s).Add(time.Minute).Truncate(time.Millisecond).UTC()
	for name, change := range map[string]func(t *testing.T, tk *task.Task){
		"started": func(t *testing.T, tk *task.Task) { claimTasks(t, s, tk) },
		"cancelled": func(t *testing.T, tk *task.Task) {
			_, _, err := s.Cancel(t.Context(), tk.ID, "ann")
			require.NoError(t, err)
		},
		"given more time": func(t *testing.T, tk *task.Task) {
			patch(t, s, tk.ID, bson.D{{Key: "expiresAt", Value: soon.Add(time.Hour)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			read := insertTasks(t, s, 2, func(tk *task.Task) { tk.ExpiresAt = soon })
			change(t, read[0])
			before := getTask(t, s, read[0].ID)
			ids, err := s.Expire(t.Context(), read, "r1")
			require.NoError(t, err)
			require.Equal(t, idsOf(read[1:]), ids, "the other one alone")
			require.Equal(t, before, getTask(t, s, read[0].ID))
		})
	}
	for _, tk := range []*task.Task{
		{ID: "a", State: task.Running, ExpiresAt: soon}, {ID: "a", State: task.Failed, ExpiresAt: soon}, {ID: "a", State: task.Pending},
	} {
		_, err := s.Expire(t.Context(), []*task.Task{tk}, "r1")
		require.ErrorContains(t, err, "task a is")
	}
}
