package audit_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/audit"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
)

// lives leads tasks through every kind of life and leaves some of each state.
func (r *rig) lives() {
	r.succeeded("ok")
	r.insert("delayed", func(t *task.Task) { t.ScheduledAt = r.now.Add(40 * 24 * time.Hour) })
	r.insert("farthest", func(t *task.Task) { t.ScheduledAt = task.MaxTime })
	r.running("runs")
	r.insert("held", func(t *task.Task) { t.Held = true })
	r.insert("gated", func(t *task.Task) { t.WaitingOn = []string{"gate/open"} })
	r.insert("child", func(t *task.Task) { t.WaitingOn = []string{"runs"} })
	for range 2 {
		if _, err := r.store.Get(r.Context(), "retried"); err != nil {
			r.insert("retried")
		}
		r.finish(r.claim("retried"), task.FailedAttempt)
	}
	r.finish(r.claim("retried"), task.Succeeded)
	r.insert("lost")
	for range 4 {
		r.set("lost", "scheduledAt", r.ago(time.Minute)) // the second loss puts it off
		r.claim("lost")
		r.revive("lost")
	}
	require.Equal(r, task.Failed, r.get("lost").State)
	r.running("given up")
	r.revive("given up")
	r.finish(r.claim("given up"), task.FailedForGood)
	r.insert("cancelled")
	r.running("cancelled while it ran")
	for _, id := range []string{"cancelled", "cancelled while it ran"} {
		_, _, err := r.store.Cancel(r.Context(), id, "me")
		require.NoError(r, err)
	}
	r.finish(r.get("cancelled while it ran"), task.CancelledByRequest)
	r.insert("expired", func(t *task.Task) { t.ExpiresAt, t.OnExhausted = r.now.Add(time.Millisecond), task.Ignore })
	_, err := r.store.Expire(r.Context(), []*task.Task{r.get("expired")}, "r")
	require.NoError(r, err)
	r.insert("long", func(t *task.Task) { t.MaxAttempts = 1000 })
	for range 60 { // its history is full
		t := r.claim("long")
		r.finish(t, task.Released)
	}
	require.Len(r, r.get("long").History, task.MaxHistory)
	r.insert("snoozed")
	r.finish(r.claim("snoozed"), task.Snoozed)
	for _, id := range []string{"lost", "given up"} {
		require.NoError(r, r.store.UpsertDeadLetters(r.Context(), []task.DeadTask{{ID: id, Type: "email", Reason: task.ReasonWorkerLost, At: r.now}}))
	}
}

func TestEachDamageIsFoundAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lives()
	r.told(r.now.Add(time.Hour))
	clean := func(t *testing.T) {
		found, sum := r.audit()
		require.Empty(t, found)
		require.Empty(t, sum.Unchecked)
	}
	clean(t)

	const submitted, claimed, ended = "history.0.", "history.1.", "history.2."
	for _, c := range []struct {
		name string
		kind audit.Kind
		do   func(id string)
	}{
		{"a reason that the table does not have", audit.Transition, func(id string) { r.succeeded(id); r.set(id, claimed+"reason", "snoozed") }},
		{"a state that no change led to", audit.Transition, func(id string) { r.insert(id); r.set(id, "state", "waiting", "held", true) }},
		{"an unknown state", audit.Transition, func(id string) { r.insert(id); r.set(id, "state", "lost") }},
		{"a change out of a terminal state", audit.Transition, func(id string) {
			r.succeeded(id)
			r.set(id, "state", "pending", "seq", int64(4), "history.3",
				doc("seq", int64(4), "at", r.now, "from", "success", "to", "pending", "reason", "retry", "by", "worker/w", "attempt", 1, "claim", "c"))
			r.unset(id, "finishedAt")
		}},
		{"a gap in seq", audit.Seq, func(id string) { r.succeeded(id); r.set(id, "seq", int64(7), ended+"seq", int64(7)) }},
		{"a repeat in seq", audit.Seq, func(id string) { r.succeeded(id); r.set(id, "seq", int64(2), ended+"seq", int64(2)) }},
		{"a change that history does not have", audit.Seq, func(id string) { r.succeeded(id); r.set(id, "seq", int64(9)) }},
		{"a history whose beginning is gone", audit.Seq, func(id string) {
			r.succeeded(id)
			r.damage(mongostore.TasksCollection, id, bson.D{{Key: "$pop", Value: doc("history", -1)}})
		}},
		{"no history", audit.Seq, func(id string) { r.succeeded(id); r.unset(id, "history") }},
		{"two executions at once", audit.Overlap, func(id string) {
			r.running(id)
			r.set(id, "seq", int64(3), "claim", "other", "attempts", 2, ended[:len(ended)-1],
				doc("seq", int64(3), "at", r.now, "from", "pending", "to", "running", "reason", "claimed", "by", "worker/w2", "attempt", 2, "claim", "other"))
		}},
		{"ended by a foreign report", audit.Overlap, func(id string) { r.succeeded(id); r.set(id, ended+"claim", "other") }},
		{"a claim without a record", audit.Overlap, func(id string) { r.running(id); r.set(id, "claim", "other") }},
		{"more failures than attempts", audit.Failures, func(id string) { r.insert(id); r.set(id, "failures", 4) }},
		{"more losses than allowed", audit.Losses, func(id string) { r.insert(id); r.set(id, "losses", 5) }},
		{"no lease", audit.Lease, func(id string) { r.running(id); r.unset(id, "leaseUntil") }},
		{"never looked at", audit.Lease, func(id string) { r.running(id); r.unset(id, "checkAt") }},
		{"no owner", audit.Owner, func(id string) { r.running(id); r.unset(id, "workerId") }},
		{"no claim", audit.Owner, func(id string) { r.running(id); r.unset(id, "claim") }},
		{"pending and owned", audit.Owner, func(id string) { r.insert(id); r.set(id, "workerId", "w") }},
		{"ended and owned", audit.Leftover, func(id string) { r.succeeded(id); r.set(id, "workerId", "w") }},
		{"ended with a lease", audit.Leftover, func(id string) { r.succeeded(id); r.set(id, "leaseUntil", r.now) }},
		{"ended with a deadline", audit.Leftover, func(id string) { r.succeeded(id); r.set(id, "deadlineAt", r.now) }},
		{"ended and to be looked at", audit.Leftover, func(id string) { r.succeeded(id); r.set(id, "checkAt", r.now) }},
		{"ended at no time", audit.Leftover, func(id string) { r.succeeded(id); r.unset(id, "finishedAt") }},
		{"pending and finished", audit.Leftover, func(id string) { r.insert(id); r.set(id, "finishedAt", r.now) }},
		{"parents have ended", audit.Waiting, func(id string) {
			r.insert(id, func(t *task.Task) { t.WaitingOn = []string{"old parent"} })
			if _, err := r.store.Get(r.Context(), "old parent"); err != nil {
				r.succeeded("old parent")
				r.set("old parent", "finishedAt", r.ago(time.Hour))
			}
			r.set(id, "createdAt", r.ago(time.Hour), submitted+"at", r.ago(time.Hour))
		}},
		{"it waits for nothing", audit.Waiting, func(id string) {
			r.insert(id, func(t *task.Task) { t.WaitingOn = []string{"x"} })
			r.set(id, "createdAt", r.ago(2*late), submitted+"at", r.ago(2*late), "checkAt", r.ago(2*late), "waitingOn", bson.A{})
		}},
		{"no dead letter", audit.DeadLetter, func(id string) {
			r.finish(r.running(id), task.FailedForGood)
			r.set(id, ended+"at", r.ago(time.Minute))
		}},
		{"a dead letter of nobody", audit.DeadLetterOrphan, func(id string) {
			require.NoError(t, r.store.UpsertDeadLetters(t.Context(), []task.DeadTask{{ID: id, Type: "email", Reason: task.ReasonExhausted, At: r.now}}))
		}},
		{"a dead letter of a task that succeeded", audit.DeadLetterOrphan, func(id string) {
			r.succeeded(id)
			require.NoError(t, r.store.UpsertDeadLetters(t.Context(), []task.DeadTask{{ID: id, Type: "email", Reason: task.ReasonExhausted, At: r.now}}))
		}},
		{"archived and running", audit.Archived, func(id string) { r.running(id); r.archive(id) }},
		{"archived with a lease", audit.Leftover, func(id string) { r.succeeded(id); r.set(id, "leaseUntil", r.now); r.archive(id) }},
		{"archived with a gap in seq", audit.Seq, func(id string) {
			r.succeeded(id)
			r.set(id, "seq", int64(7), ended+"seq", int64(7))
			r.archive(id)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := fmt.Sprintf("damaged-%d", time.Now().UnixNano())
			defer func() {
				for _, collection := range []string{mongostore.TasksCollection, mongostore.ArchiveCollection, "dead_letters"} {
					_, err := r.db.Collection(collection).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}})
					require.NoError(t, err)
				}
			}()
			c.do(id)
			found, _ := r.audit()
			require.Equal(t, []string{string(c.kind) + " " + id}, found)
		})
	}
	clean(t)
}

func TestWaitingThatIsRightIsNotReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.succeeded("ended")
	r.set("ended", "finishedAt", r.ago(time.Hour))
	r.running("runs")
	for id, change := range map[string]func(*task.Task){
		"held":     func(t *task.Task) { t.WaitingOn, t.Held = []string{"ended"}, true },
		"gated":    func(t *task.Task) { t.WaitingOn = []string{"ended", "gate/open"} },
		"for one":  func(t *task.Task) { t.WaitingOn = []string{"ended", "runs"} },
		"for none": func(t *task.Task) { t.WaitingOn = []string{"ended", "unknown"} },
	} {
		r.insert(id, change)
		r.set(id, "createdAt", r.ago(time.Hour), "history.0.at", r.ago(time.Hour), "checkAt", r.ago(time.Hour))
	}
	r.insert("new", func(t *task.Task) { t.WaitingOn = []string{"ended"} })
	found, _ := r.audit()
	require.Empty(t, found)
}

func TestTwoLiveTasksUnderOneUniqueKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := func(k string) func(*task.Task) { return func(t *task.Task) { t.UniqueKey = k } }
	r.insert("a", key("k"))
	r.succeeded("b", key("k"))
	r.insert("c", key("k"), func(t *task.Task) { t.Type = "other" })
	for _, id := range []string{"d", "e"} {
		r.insert(id, key("for a time"))
	}
	_, err := r.db.Collection("unique_keys").InsertOne(t.Context(), doc("_id", "email/for a time", "scope", "duration"))
	require.NoError(t, err)
	found, _ := r.audit()
	require.Empty(t, found)

	r.running("f", key("k"))
	found, _ = r.audit()
	require.Len(t, found, 1)
	require.Contains(t, []string{"unique a", "unique f"}, found[0])
}

func TestOverdueOnlyWhileAWorkerIsFree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	overdue := func(id string, by time.Duration, change ...func(*task.Task)) {
		r.insert(id, append(change, func(t *task.Task) { t.ScheduledAt = r.ago(by) })...)
	}
	worker := func(id string, slots int, types ...string) {
		require.NoError(t, r.store.BeatWorker(t.Context(), task.WorkerInfo{ID: id, Channel: task.ChannelStable, Types: types, Slots: slots}))
		r.damage("workers", id, bson.D{{Key: "$set", Value: doc("startedAt", r.ago(time.Hour))}})
	}
	nothing := func(why string) {
		t.Helper()
		found, _ := r.audit()
		require.Empty(t, found, why)
	}
	overdue("forgotten", time.Hour)
	nothing("there is no worker")
	worker("others", 5, "report")
	nothing("the worker does not take the type")
	worker("w", 1, "email")
	r.running("busy")
	nothing("the worker is busy")
	r.set("busy", "startedAt", r.ago(time.Hour))
	worker("w", 2, "email")
	found, _ := r.audit()
	require.Equal(t, []string{"overdue forgotten"}, found)

	found, _ = r.audit(func(o *audit.Options) { o.Type = "report" })
	require.Empty(t, found)
	r.set("busy", "startedAt", r.now, "scheduledAt", r.ago(2*time.Hour))
	nothing("work goes on with what was due before")
	r.set("busy", "scheduledAt", r.ago(10*time.Minute))
	found, _ = r.audit()
	require.Equal(t, []string{"overdue forgotten"}, found, "what was due later was started before it")
	r.damage("workers", "w", bson.D{{Key: "$set", Value: doc("seenAt", r.ago(time.Hour))}})
	nothing("the worker is gone")
}

// More tasks than fit a window, in one moment and spread over years, are all read, each once.
func TestAllTasksAreRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const crowd = 1300
	moments := []time.Time{r.now.Add(time.Hour), r.ago(time.Hour), {}}
	var tasks []*task.Task
	for i := range crowd {
		tasks = append(tasks, &task.Task{ID: fmt.Sprintf("t%05d", i), Type: "email", MaxAttempts: 3, MaxLosses: 3, ScheduledAt: moments[i%3],
			Source: "api", SubmitHash: "v1:x"})
	}
	for i := range 300 {
		tasks = append(tasks, &task.Task{ID: fmt.Sprintf("s%05d", i), Type: "email", MaxAttempts: 3, MaxLosses: 3,
			ScheduledAt: r.now.Add(time.Duration(i-150) * 30 * 24 * time.Hour), Source: "api", SubmitHash: "v1:x"})
	}
	_, err := r.store.Insert(t.Context(), tasks)
	require.NoError(t, err)
	r.set("t00001", "scheduledAt", r.ago(90*365*24*time.Hour))
	r.succeeded("long ago")
	r.set("long ago", "finishedAt", r.ago(60*365*24*time.Hour))
	_, err = r.db.Collection(mongostore.TasksCollection).UpdateMany(t.Context(), doc("scheduledAt", r.now.Add(time.Hour)), bson.D{{Key: "$set", Value: doc("failures", 9)}})
	require.NoError(t, err)
	found, sum := r.audit()
	require.Equal(t, len(tasks)+1, sum.Tasks)
	require.Len(t, found, (crowd+2)/3)

	found, sum = r.audit(func(o *audit.Options) { o.Limit = 7 })
	require.Len(t, found, 7)
	require.True(t, sum.Stopped)
	_, sum = r.audit(func(o *audit.Options) { o.Type = "other" })
	require.Zero(t, sum.Tasks)
	_, sum = r.audit(func(o *audit.Options) { o.Since = r.ago(time.Hour) })
	require.Equal(t, len(tasks), sum.Tasks, "what ended before is passed over")
}

// changing lets a task change between two reads of it.
type changing struct {
	*mongostore.Store
	before func(ids []string)
}

func (c changing) ByIDs(ctx context.Context, ids []string) ([]*task.Task, error) {
	c.before(ids)
	return c.Store.ByIDs(ctx, ids)
}

func TestWhatChangesBetweenTwoReadsIsNotReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insert("x")
	r.set("x", "failures", 9)
	looked := 0
	store := changing{r.store, func(ids []string) {
		require.Equal(t, []string{"x"}, ids)
		r.set("x", "failures", 1)
		looked++
	}}
	sum, err := audit.Run(t.Context(), store, audit.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, looked)
	require.Zero(t, sum.Violations)
}

func TestAnAuditThatCannotReadSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insert("x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := audit.Run(ctx, r.store, audit.Options{})
	require.ErrorIs(t, err, context.Canceled)
}

// The table of kinds in the runbooks is whole.
func TestEveryKindIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	for _, kind := range audit.Kinds {
		require.Contains(t, string(text), "`"+string(kind)+"`")
	}
}
