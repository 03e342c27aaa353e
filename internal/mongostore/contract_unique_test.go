package mongostore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// wanting is a task that wants the key "k", on the terms that change may adjust.
func wanting(change ...func(*task.Task)) *task.Task {
	return newTask(append([]func(*task.Task){func(tk *task.Task) {
		tk.UniqueKey = "k"
		tk.Unique = &task.Unique{Scope: task.ScopeActive, OnConflict: task.ConflictReject, At: time.Now()}
	}}, change...)...)
}

func onConflict(c task.OnConflict) func(*task.Task) {
	return func(tk *task.Task) { tk.Unique.OnConflict = c }
}

func insertOne(t testing.TB, s *Store, tk *task.Task) task.InsertStatus {
	t.Helper()
	status, err := s.Insert(t.Context(), []*task.Task{tk})
	require.NoError(t, err)
	return status[0]
}

func requireHeld(t testing.TB, s *Store, by, tk *task.Task) {
	t.Helper()
	require.Equal(t, task.Held, insertOne(t, s, tk))
	require.Equal(t, by.ID, tk.Unique.Holder)
	_, err := s.Get(t.Context(), tk.ID)
	require.ErrorIs(t, err, task.ErrNotFound, "nothing of it is stored")
}

func holder(t testing.TB, s *Store) uniqueKey {
	t.Helper()
	var d uniqueKey
	require.NoError(t, s.bulkDB.Collection(uniqueKeysCollection).FindOne(t.Context(), bson.D{{Key: "_id", Value: "email/k"}}).Decode(&d))
	return d
}

func endTask(t testing.TB, s *Store, tk *task.Task) {
	t.Helper()
	status, _, err := s.Cancel(t.Context(), tk.ID, "test")
	require.NoError(t, err)
	require.Equal(t, task.CancelDone, status)
}

func TestUniqueWhileActive(t *testing.T) {
	s := openStore(t)
	first := wanting()
	require.Equal(t, task.Inserted, insertOne(t, s, first))
	got := getTask(t, s, first.ID)
	require.Equal(t, "k", got.UniqueKey)
	requireSound(t, got)

	requireHeld(t, s, first, wanting())
	requireHeld(t, s, first, wanting(onConflict(task.ConflictKeep)))
	require.Equal(t, task.Duplicate, insertOne(t, s, wanting(func(tk *task.Task) { tk.ID, tk.SubmitHash = first.ID, first.SubmitHash })), "a repeat is not held up by itself")
	require.Equal(t, task.Conflict, insertOne(t, s, wanting(func(tk *task.Task) { tk.ID = first.ID })))
	require.Equal(t, task.Inserted, insertOne(t, s, wanting(func(tk *task.Task) { tk.Type = "report" })), "another type has keys of its own")
	require.Equal(t, task.Inserted, insertOne(t, s, wanting(func(tk *task.Task) { tk.UniqueKey = "other" })))

	claimed := claimTasks(t, s, first)[0]
	requireHeld(t, s, first, wanting())
	requireHeld(t, s, first, wanting(onConflict(task.ConflictReplace)))

	answers, err := s.Finish(t.Context(), []task.Outcome{{Owned: task.Owned{ID: first.ID, Claim: claimed.Claim}, Worker: "w1", Kind: task.Succeeded, Task: claimed}})
	require.NoError(t, err)
	require.NoError(t, answers[0])
	second := wanting()
	require.Equal(t, task.Inserted, insertOne(t, s, second), "the end of the holder frees the key")
	require.Equal(t, second.ID, holder(t, s).TaskID)

	// The holder has ended and was removed or archived.
	endTask(t, s, second)
	_, err = s.tasks.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: second.ID}})
	require.NoError(t, err)
	require.Equal(t, task.Inserted, insertOne(t, s, wanting()))
}

func TestUniqueForATimeAndForEver(t *testing.T) {
	s := openStore(t)
	timed := func(tk *task.Task) { tk.Unique.Scope, tk.Unique.For = task.ScopeDuration, time.Hour }
	first := wanting(timed)
	require.Equal(t, task.Inserted, insertOne(t, s, first))
	endTask(t, s, first)
	requireHeld(t, s, first, wanting(timed))
	requireHeld(t, s, first, wanting())
	requireHeld(t, s, first, wanting(timed, onConflict(task.ConflictReplace)))
	now, _, err := s.Now()
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(time.Hour), holder(t, s).Until, 10*time.Second)

	patchIn(t, s, uniqueKeysCollection, "email/k", bson.D{{Key: "until", Value: now.Add(-time.Second)}})
	last := wanting(func(tk *task.Task) { tk.Unique.Scope = task.ScopeForever })
	require.Equal(t, task.Inserted, insertOne(t, s, last), "its time is over")
	require.Zero(t, holder(t, s).Until)
	endTask(t, s, last)
	requireHeld(t, s, last, wanting())

	// The holder itself is run again: not held up, and the terms stay.
	rerun := wanting(func(tk *task.Task) { tk.RerunOf = last.ID })
	require.Equal(t, task.Inserted, insertOne(t, s, rerun))
	require.Equal(t, uniqueKey{ID: "email/k", TaskID: rerun.ID, Scope: "forever"}, func() uniqueKey { d := holder(t, s); d.At, d.Since = 0, time.Time{}; return d }())
	requireHeld(t, s, rerun, wanting(func(tk *task.Task) { tk.RerunOf = last.ID }))
}

func TestUniqueReplacesWhatHasNotStarted(t *testing.T) {
	s := openStore(t)
	old := wanting()
	require.Equal(t, task.Inserted, insertOne(t, s, old))
	fresh := wanting(onConflict(task.ConflictReplace))
	require.Equal(t, task.Inserted, insertOne(t, s, fresh))
	got := getTask(t, s, old.ID)
	requireSound(t, got)
	require.Equal(t, task.Cancelled, got.State)
	require.Equal(t, task.ReasonReplaced, got.History[1].Reason)
	require.Equal(t, "submitter/"+fresh.ID, got.History[1].By)

	// One that was submitted before the holder arrives late: it has been replaced already.
	late := wanting(onConflict(task.ConflictReplace), func(tk *task.Task) { tk.Unique.At = fresh.Unique.At.Add(-time.Millisecond) })
	requireHeld(t, s, fresh, late)
	require.True(t, late.Unique.Newer)
	require.Equal(t, task.Pending, getTask(t, s, fresh.ID).State)
}

func TestUniqueDebounce(t *testing.T) {
	s := openStore(t)
	now, _, err := s.Now()
	require.NoError(t, err)
	in := func(d time.Duration) *task.Task {
		return wanting(onConflict(task.ConflictDebounce), func(tk *task.Task) {
			tk.Unique.MaxWait = 90 * time.Second
			tk.ScheduledAt = now.Add(d).UTC().Truncate(time.Millisecond)
		})
	}
	first, second, third := in(time.Minute), in(80*time.Second), in(2*time.Minute)
	for _, tk := range []*task.Task{first, second, third} {
		require.Equal(t, task.Inserted, insertOne(t, s, tk))
	}
	require.Equal(t, task.Cancelled, getTask(t, s, first.ID).State)
	require.Equal(t, task.Cancelled, getTask(t, s, second.ID).State)
	require.Equal(t, second.ScheduledAt, getTask(t, s, second.ID).ScheduledAt)
	last := getTask(t, s, third.ID)
	require.Equal(t, task.Pending, last.State)
	require.WithinDuration(t, now.Add(90*time.Second), last.ScheduledAt, 5*time.Second, "no later than the longest wait after the first")
	require.True(t, last.ScheduledAt.Before(third.ScheduledAt.Add(time.Millisecond)))

	// A new series begins when the last one has ended.
	endTask(t, s, third)
	next := in(2 * time.Minute)
	require.Equal(t, task.Inserted, insertOne(t, s, next))
	require.Equal(t, next.ScheduledAt, getTask(t, s, next.ID).ScheduledAt)
}

func TestUniqueUnderRacingSubmitters(t *testing.T) {
	s := openStore(t)
	for _, mode := range []task.OnConflict{task.ConflictReject, task.ConflictReplace} {
		const racers, keys = 50, 4
		status := make([][]task.InsertStatus, racers)
		var all sync.WaitGroup
		for i := range racers {
			all.Go(func() {
				batch := make([]*task.Task, keys)
				for k := range batch {
					batch[k] = wanting(onConflict(mode), func(tk *task.Task) { tk.UniqueKey = fmt.Sprintf("%s-%d", mode, k) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var err error
				for status[i] = nil; status[i] == nil; {
					if status[i], err = s.Insert(ctx, batch); err != nil {
						if ctx.Err() != nil {
							t.Errorf("insert: %v", err)
							return
						}
						status[i] = nil // as the submitter does: again
					}
				}
			})
		}
		all.Wait()
		for k := range keys {
			filter := bson.D{{Key: "uniqueKey", Value: fmt.Sprintf("%s-%d", mode, k)}}
			live, err := s.tasks.CountDocuments(t.Context(), append(filter, bson.E{Key: "state", Value: "pending"}))
			require.NoError(t, err)
			require.EqualValues(t, 1, live, "one holds %s-%d", mode, k)
			stored, err := s.tasks.CountDocuments(t.Context(), filter)
			require.NoError(t, err)
			won := 0
			for i := range racers {
				if status[i][k] == task.Inserted || status[i][k] == task.Duplicate {
					won++
				}
			}
			require.EqualValues(t, stored, won, "each was told the truth")
			if mode == task.ConflictReject {
				require.Equal(t, 1, won)
			}
		}
	}
}

func TestUniqueReplaceAgainstClaim(t *testing.T) {
	s := openStore(t)
	replaced, kept := 0, 0
	for i := range 40 {
		old := wanting(func(tk *task.Task) { tk.UniqueKey = tk.ID })
		require.Equal(t, task.Inserted, insertOne(t, s, old))
		fresh := wanting(onConflict(task.ConflictReplace), func(tk *task.Task) { tk.UniqueKey = old.ID })
		var claimed []*task.Task
		var status task.InsertStatus
		var both sync.WaitGroup
		both.Go(func() {
			<-time.After(time.Duration(i) * 250 * time.Microsecond) // from well before the transaction's end to well after it
			var err error
			claimed, err = s.Claim(t.Context(), task.ClaimRequest{IDs: []string{old.ID}, Claim: newClaim(), Worker: "w1", Lease: time.Minute})
			if err != nil {
				t.Errorf("claim: %v", err)
			}
		})
		both.Go(func() { status = insertOne(t, s, fresh) })
		both.Wait()
		if status == task.Inserted {
			replaced++
			require.Empty(t, claimed, "what was replaced does not run")
			require.Equal(t, task.Cancelled, getTask(t, s, old.ID).State)
		} else {
			kept++
			require.Equal(t, task.Held, status)
			require.Len(t, claimed, 1)
		}
	}
	t.Logf("replaced %d, kept %d", replaced, kept)
}

func TestUniqueNeedsTransactions(t *testing.T) {
	s := openStore(t)
	s.features.Transactions = false
	tk := wanting()
	require.Equal(t, task.NoTransactions, insertOne(t, s, tk))
	_, err := s.Get(t.Context(), tk.ID)
	require.ErrorIs(t, err, task.ErrNotFound)
}

func TestScenarioM01UniqueIsUnique(t *testing.T) {
	cut := &replyCutter{}
	s := openStore(t, func(o *Options) { o.adjust = cut.dial })
	commands := []string{"insert", "find", "commitTransaction"}
	for round := range 40 {
		before := cut.cuts.Load()
		cut.arm(commands[round%len(commands)])
		const creators = 50
		told := make([]string, creators)
		var all sync.WaitGroup
		for i := range creators {
			all.Go(func() {
				tk := wanting(func(tk *task.Task) { tk.UniqueKey = fmt.Sprint(round) })
				for tries := 0; told[i] == ""; tries++ {
					status, err := s.Insert(t.Context(), []*task.Task{tk})
					switch {
					case err != nil && tries < 20: // as the submitter does: again
					case err != nil:
						t.Errorf("insert: %v", err)
						return
					case status[0] == task.Held:
						told[i] = tk.Unique.Holder
					default:
						told[i] = tk.ID
					}
				}
			})
		}
		all.Wait()
		require.Greater(t, cut.cuts.Load(), before, "a reply was lost")
		for _, id := range told {
			require.Equal(t, told[0], id, "round %d: all name one task", round)
		}
		n, err := s.tasks.CountDocuments(t.Context(), bson.D{{Key: "uniqueKey", Value: fmt.Sprint(round)}})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	}
}
