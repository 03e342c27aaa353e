package mongostore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// outcomeOf is a report of the given kind about a task as claimed.
func outcomeOf(tk *task.Task, kind task.OutcomeKind) task.Outcome {
	o := task.Outcome{Owned: task.Owned{ID: tk.ID, Claim: tk.Claim}, Worker: "w1", Kind: kind, Task: tk}
	switch kind {
	case task.Succeeded:
		o.Result = json.RawMessage(`{"$id":"` + tk.ID + `"}`)
	case task.FailedAttempt, task.FailedForGood, task.RejectedResult:
		o.Error = &task.Error{Message: "$boom of " + tk.ID, Code: "E1", Cause: task.ReasonError}
	case task.Snoozed:
		o.Delay = 90 * time.Second
	}
	return o
}

func finish(t *testing.T, s *Store, outcomes ...task.Outcome) []error {
	t.Helper()
	answers, err := s.Finish(t.Context(), outcomes)
	require.NoError(t, err)
	require.Len(t, answers, len(outcomes))
	return answers
}

func finishOne(t *testing.T, s *Store, tk *task.Task, kind task.OutcomeKind) {
	t.Helper()
	require.NoError(t, finish(t, s, outcomeOf(tk, kind))[0])
}

// Each kind of report, alone and in a group, with and without a cancel asked for meanwhile.
func TestFinishKinds(t *testing.T) {
	s := openStore(t)
	last := func(tk *task.Task) { tk.MaxAttempts = 1 }
	for _, c := range []struct {
		name      string
		kind      task.OutcomeKind
		change    func(*task.Task)
		to        task.State
		reason    task.Reason
		failures  int
		delay     time.Duration // of scheduledAt after the report; -1: as it was
		cancelled bool          // becomes cancelled when that was asked for
	}{
		{"succeeded", task.Succeeded, nil, task.Success, task.ReasonSucceeded, 0, -1, false},
		{"retry", task.FailedAttempt, nil, task.Pending, task.ReasonRetry, 1, 1250 * time.Millisecond, true},
		{"exhausted", task.FailedAttempt, last, task.Failed, task.ReasonExhausted, 1, -1, false},
		{"for good", task.FailedForGood, nil, task.Failed, task.ReasonNonRetryable, 1, -1, false},
		{"rejected result", task.RejectedResult, nil, task.Failed, task.ReasonRejectedResult, 1, -1, false},
		{"released", task.Released, nil, task.Pending, task.ReasonReleased, 0, -1, true},
		{"snoozed", task.Snoozed, nil, task.Pending, task.ReasonSnoozed, 0, 90 * time.Second, true},
		{"cancelled without a request", task.CancelledByRequest, nil, task.Pending, task.ReasonReleased, 0, -1, true},
	} {
		for _, n := range []int{1, 3} {
			for _, asked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/cancel=%v", c.name, n, asked), func(t *testing.T) {
					to, reason := c.to, c.reason
					if asked && c.cancelled {
						to, reason = task.Cancelled, task.ReasonCancelled
					}
					var change []func(*task.Task)
					if c.change != nil {
						change = append(change, c.change)
					}
					tasks := claimTasks(t, s, insertTasks(t, s, n, change...)...)
					outcomes := make([]task.Outcome, n)
					for i, tk := range tasks {
						outcomes[i] = outcomeOf(tk, c.kind)
						outcomes[i].Random = 0.5
						if asked {
							_, _, err := s.Cancel(t.Context(), tk.ID, "ann")
							require.NoError(t, err)
						}
					}
					for _, err := range finish(t, s, outcomes...) {
						require.NoError(t, err)
					}
					for i, tk := range tasks {
						got := getTask(t, s, tk.ID)
						requireSound(t, got)
						entry := got.History[len(got.History)-1]
						require.Equal(t, to, got.State)
						require.Equal(t, reason, entry.Reason)
						require.Equal(t, "worker/w1", entry.By)
						require.Equal(t, tk.Claim, entry.Claim, "the claim stays")
						require.Equal(t, tk.Claim, got.Claim)
						require.Equal(t, 1, got.Attempts)
						require.Equal(t, c.failures, got.Failures)
						require.Zero(t, got.Losses)
						require.Zero(t, got.CheckAt)
						if c.delay < 0 || to == task.Cancelled {
							require.Equal(t, tk.ScheduledAt, got.ScheduledAt)
						} else {
							require.Equal(t, entry.At.Add(c.delay), got.ScheduledAt)
						}
						if to.Terminal() {
							require.Equal(t, entry.At, got.FinishedAt)
						}
						require.Equal(t, outcomes[i].Result, got.Result)
						if c.failures > 0 {
							want := *outcomes[i].Error
							want.Attempt = 1
							require.Equal(t, &want, got.LastError)
							require.Equal(t, &want, entry.Error)
						} else {
							require.Nil(t, got.LastError)
							require.Nil(t, entry.Error)
						}
					}
				})
			}
		}
	}
}

func TestFinishKeepsTheExpiryOfWhatGoesBack(t *testing.T) {
	s := openStore(t)
	now, _, err := s.Now()
	require.NoError(t, err)
	expires := now.Add(time.Hour).UTC().Truncate(time.Millisecond)
	tk := claimTasks(t, s, insertTasks(t, s, 1, func(tk *task.Task) { tk.ExpiresAt = expires })...)[0]
	finishOne(t, s, tk, task.Released)
	require.Equal(t, expires, getTask(t, s, tk.ID).CheckAt)
}

// One batch with everything in it: several claims, kinds, and reports that are refused.
func TestFinishMixedBatch(t *testing.T) {
	s := openStore(t)
	a := claimTasks(t, s, insertTasks(t, s, 6)...)
	b := claimTasks(t, s, insertTasks(t, s, 3)...)
	reviveTask(t, s, a[5].ID)
	again := claimTasks(t, s, a[5])[0] // the same worker, another execution
	gone := &task.Task{ID: "gone", Claim: a[0].Claim}
	foreign := &task.Task{ID: b[2].ID, Claim: a[0].Claim}
	outcomes := []task.Outcome{
		outcomeOf(a[0], task.Succeeded), outcomeOf(b[0], task.FailedAttempt), outcomeOf(a[5], task.Succeeded), outcomeOf(a[1], task.Succeeded),
		outcomeOf(gone, task.Succeeded), outcomeOf(a[2], task.Snoozed), outcomeOf(b[1], task.FailedAttempt), outcomeOf(foreign, task.Succeeded),
		outcomeOf(a[3], task.FailedForGood), outcomeOf(a[4], task.Released),
	}
	outcomes[3].Result = nil // none
	answers := finish(t, s, outcomes...)
	for i, err := range answers {
		if refused := i == 2 || i == 4 || i == 7; refused {
			require.ErrorIs(t, err, task.ErrLeaseLost, "report %d", i)
		} else {
			require.NoError(t, err, "report %d", i)
		}
	}
	require.Equal(t, outcomes[0].Result, getTask(t, s, a[0].ID).Result)
	require.Nil(t, getTask(t, s, a[1].ID).Result)
	require.Equal(t, task.Success, getTask(t, s, a[1].ID).State)
	require.Equal(t, again.Claim, getTask(t, s, a[5].ID).Claim)
	require.Equal(t, task.Running, getTask(t, s, a[5].ID).State)
	require.Equal(t, task.Running, getTask(t, s, b[2].ID).State)
	for _, tk := range append(a, b...) {
		requireSound(t, getTask(t, s, tk.ID))
	}
}

func TestFinishRefusesWhatIsNoLongerItsOwn(t *testing.T) {
	s := openStore(t)
	for name, lose := range map[string]func(tk *task.Task){
		"revived":           func(tk *task.Task) { reviveTask(t, s, tk.ID) },
		"revived and taken": func(tk *task.Task) { reviveTask(t, s, tk.ID); claimTasks(t, s, tk) },
		"another claim":     func(tk *task.Task) { patch(t, s, tk.ID, bson.D{{Key: "claim", Value: "other"}}) },
		"cancelled by the reaper": func(tk *task.Task) {
			patch(t, s, tk.ID, bson.D{{Key: "state", Value: "cancelled"}})
		},
	} {
		for _, kind := range []task.OutcomeKind{task.Succeeded, task.FailedAttempt, task.Released, task.CancelledByRequest} {
			t.Run(fmt.Sprint(name, " ", kind), func(t *testing.T) {
				tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
				lose(tk)
				before := getTask(t, s, tk.ID)
				require.ErrorIs(t, finish(t, s, outcomeOf(tk, kind))[0], task.ErrLeaseLost)
				require.Equal(t, before, getTask(t, s, tk.ID))
			})
		}
	}
}

// A report is known again by its claim: an earlier execution by the same worker that ended in the same way is another.
func TestFinishIsNotRecordedByAnEarlierExecution(t *testing.T) {
	s := openStore(t)
	for _, kind := range []task.OutcomeKind{task.FailedAttempt, task.Released, task.Snoozed} {
		first := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
		finishOne(t, s, first, kind)
		patch(t, s, first.ID, bson.D{{Key: "scheduledAt", Value: first.ScheduledAt}})
		second := claimTasks(t, s, first)[0]
		reviveTask(t, s, second.ID)
		before := getTask(t, s, second.ID)
		require.ErrorIs(t, finish(t, s, outcomeOf(second, kind))[0], task.ErrLeaseLost, kind)
		require.NoError(t, finish(t, s, outcomeOf(first, kind))[0], "the first one is on record")
		require.Equal(t, before, getTask(t, s, second.ID))
	}
}

// The same report twice is recorded once, and answered the same; another report of the same execution is refused.
func TestFinishTwice(t *testing.T) {
	s := openStore(t)
	for _, kind := range []task.OutcomeKind{task.Succeeded, task.FailedAttempt, task.FailedForGood, task.Released, task.Snoozed, task.CancelledByRequest} {
		tasks := claimTasks(t, s, insertTasks(t, s, 3)...)
		outcomes := []task.Outcome{outcomeOf(tasks[0], kind), outcomeOf(tasks[1], kind), outcomeOf(tasks[2], kind)}
		finish(t, s, outcomes[0], outcomes[1])
		before := getTask(t, s, tasks[0].ID)
		for _, err := range finish(t, s, append(outcomes, outcomes...)...) {
			require.NoError(t, err)
		}
		require.Equal(t, before, getTask(t, s, tasks[0].ID))
		other := task.Snoozed
		if kind == task.Snoozed {
			other = task.Released
		}
		require.ErrorIs(t, finish(t, s, outcomeOf(tasks[0], other))[0], task.ErrLeaseLost)
		require.Equal(t, before, getTask(t, s, tasks[0].ID))
	}
}

// A retry that was turned into a cancel is recognised when it is reported again.
func TestFinishTwiceAfterACancel(t *testing.T) {
	s := openStore(t)
	tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	_, _, err := s.Cancel(t.Context(), tk.ID, "ann")
	require.NoError(t, err)
	finishOne(t, s, tk, task.FailedAttempt)
	finishOne(t, s, tk, task.FailedAttempt)
	got := getTask(t, s, tk.ID)
	require.Equal(t, task.Cancelled, got.State)
	require.Len(t, got.History, 4)
}

// The task went on after the report: a repeat finds it in the history all the same.
func TestFinishRepeatedMuchLater(t *testing.T) {
	s := openStore(t)
	first := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	finishOne(t, s, first, task.Released)
	second := claimTasks(t, s, first)[0]
	finishOne(t, s, second, task.Succeeded)
	finishOne(t, s, first, task.Released)
	require.ErrorIs(t, finish(t, s, outcomeOf(first, task.Succeeded))[0], task.ErrLeaseLost)
	require.Len(t, getTask(t, s, first.ID).History, 5)
}

func TestFinishWhoseReplyIsLost(t *testing.T) {
	for _, n := range []int{1, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			cut := &replyCutter{}
			s := openStore(t, func(o *Options) { o.adjust = cut.dial })
			tasks := claimTasks(t, s, insertTasks(t, s, n)...)
			outcomes := make([]task.Outcome, n)
			for i, tk := range tasks {
				outcomes[i] = outcomeOf(tk, task.FailedAttempt)
			}
			cut.arm("update")
			answers, err := s.Finish(t.Context(), outcomes)
			require.True(t, cut.fired())
			if err != nil { // the driver repeats single updates by itself
				require.ErrorIs(t, err, task.ErrUnknownOutcome)
				answers, err = s.Finish(t.Context(), outcomes)
			}
			require.NoError(t, err)
			for i, tk := range tasks {
				require.NoError(t, answers[i])
				got := getTask(t, s, tk.ID)
				require.Equal(t, 1, got.Failures)
				require.Len(t, got.History, 3)
			}
		})
	}
}

func TestFinishCutShortByItsCaller(t *testing.T) {
	s := openStore(t)
	tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Finish(ctx, []task.Outcome{outcomeOf(tk, task.Succeeded)})
	require.ErrorIs(t, err, task.ErrUnknownOutcome)
	finishOne(t, s, tk, task.Succeeded)
}

func TestFinishRejectsResults(t *testing.T) {
	s := openStore(t)
	tasks := claimTasks(t, s, insertTasks(t, s, 4)...)
	large, broken, full, latin := outcomeOf(tasks[0], task.Succeeded), outcomeOf(tasks[1], task.Succeeded),
		outcomeOf(tasks[2], task.Succeeded), outcomeOf(tasks[3], task.Succeeded)
	latin.Result = json.RawMessage("\"\xe9\"")
	large.Result = json.RawMessage(`"` + strings.Repeat("x", task.MaxResult-1) + `"`)
	broken.Result = json.RawMessage(`{"a":`)
	full.Result = json.RawMessage(`"` + strings.Repeat("$", task.MaxResult-2) + `"`)
	for _, err := range finish(t, s, large, broken, full, latin) {
		require.NoError(t, err)
	}
	for i, message := range []string{"524289 bytes", "not JSON"} {
		got := getTask(t, s, tasks[i].ID)
		require.Equal(t, task.Failed, got.State)
		require.Equal(t, task.ReasonRejectedResult, got.History[2].Reason)
		require.Equal(t, task.ReasonRejectedResult, got.LastError.Cause)
		require.Contains(t, got.LastError.Message, message)
		require.Nil(t, got.Result)
	}
	require.Equal(t, full.Result, getTask(t, s, tasks[2].ID).Result)
	require.Contains(t, getTask(t, s, tasks[3].ID).LastError.Message, "not JSON")
}

func TestFinishNeedsTheTaskOfAFailedAttempt(t *testing.T) {
	s := openStore(t)
	_, err := s.Finish(t.Context(), []task.Outcome{{Owned: task.Owned{ID: "x", Claim: "c"}, Kind: task.FailedAttempt}})
	require.ErrorIs(t, err, errNoTask)
}

func TestFinishSplitsByBytes(t *testing.T) {
	sizes := &commandSizes{name: "update"}
	s := openStore(t, func(o *Options) { o.adjust = sizes.watch })
	tasks := claimTasks(t, s, insertTasks(t, s, 40)...)
	outcomes := make([]task.Outcome, len(tasks))
	for i, tk := range tasks {
		outcomes[i] = outcomeOf(tk, task.Succeeded)
		outcomes[i].Result = json.RawMessage(fmt.Sprintf(`"%d%s"`, i, strings.Repeat("y", 500<<10)))
	}
	sizes.reset()
	for _, err := range finish(t, s, outcomes...) {
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, sizes.count(), 3)
	require.LessOrEqual(t, sizes.largest(), maxBatchBytes+64<<10)
	for i, tk := range tasks {
		require.Equal(t, outcomes[i].Result, getTask(t, s, tk.ID).Result)
	}
}

// A task that is tried for ever keeps its newest changes only, and its numbers go on.
func TestHistoryIsCapped(t *testing.T) {
	s := openStore(t)
	tk := insertTasks(t, s, 1)[0]
	for range 60 {
		finishOne(t, s, claimTasks(t, s, tk)[0], task.Released)
	}
	got := getTask(t, s, tk.ID)
	requireSound(t, got)
	require.Len(t, got.History, task.MaxHistory)
	require.EqualValues(t, 121, got.Seq)
	require.EqualValues(t, 22, got.History[0].Seq)
	require.Equal(t, 60, got.Attempts)
}

// Two reports of one execution at the same time: one is recorded.
func TestFinishRace(t *testing.T) {
	s := openStore(t)
	for range 20 {
		tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
		kinds := []task.OutcomeKind{task.Succeeded, task.FailedForGood, task.Released, task.Snoozed}
		errs := make([]error, len(kinds))
		var wg sync.WaitGroup
		for i, kind := range kinds {
			wg.Go(func() {
				answers, err := s.Finish(context.Background(), []task.Outcome{outcomeOf(tk, kind)})
				if errs[i] = err; err == nil {
					errs[i] = answers[0]
				}
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				require.ErrorIs(t, err, task.ErrLeaseLost)
			}
		}
		require.Equal(t, 1, won)
		got := getTask(t, s, tk.ID)
		require.Len(t, got.History, 3)
		requireSound(t, got)
	}
}
