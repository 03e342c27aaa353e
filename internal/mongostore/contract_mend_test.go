package mongostore

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// ahead moves all times that the store has written into a task, which is what a step back of the clock makes of them.
func ahead(t *testing.T, s *Store, id string, by time.Duration) *task.Task {
	t.Helper()
	tk := getTask(t, s, id)
	c, err := task.ParseChange(tk.Change)
	require.NoError(t, err)
	c.At, c.ScheduledAt = c.At.Add(by), c.ScheduledAt.Add(by)
	set := bson.D{{Key: "change", Value: c.String()}}
	for name, at := range map[string]time.Time{"createdAt": tk.CreatedAt, "scheduledAt": tk.ScheduledAt, "startedAt": tk.StartedAt,
		"deadlineAt": tk.DeadlineAt, "leaseUntil": tk.LeaseUntil, "checkAt": tk.CheckAt} {
		if !at.IsZero() {
			set = append(set, bson.E{Key: name, Value: at.Add(by)})
		}
	}
	for i, e := range tk.History {
		set = append(set, bson.E{Key: fmt.Sprintf("history.%d.at", i), Value: e.At.Add(by)})
	}
	patch(t, s, id, set)
	return getTask(t, s, id)
}

func mend(t *testing.T, s *Store) int {
	t.Helper()
	n, err := s.Mend(t.Context(), serverNow(t, s), task.DefaultLease)
	require.NoError(t, err)
	return n
}

// After the clock went back an hour: what would have lain still for an hour goes on; what was meant to be late stays.
func TestMend(t *testing.T) {
	s := openStore(t)
	now := serverNow(t, s).Truncate(time.Millisecond).UTC()
	const step = time.Hour

	atOnce := ahead(t, s, insertTasks(t, s, 1)[0].ID, step)
	retried := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	finishOne(t, s, retried, task.FailedAttempt) // in a second or two
	retried = ahead(t, s, retried.ID, step)
	snoozed := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	finishOne(t, s, snoozed, task.Snoozed) // in 90 s
	snoozed = ahead(t, s, snoozed.ID, step)
	delayed := ahead(t, s, insertTasks(t, s, 1, func(tk *task.Task) {
		tk.Delay, tk.ScheduledAt = time.Minute, now.Add(time.Minute)
	})[0].ID, step)
	running := ahead(t, s, claimTasks(t, s, insertTasks(t, s, 1)...)[0].ID, step)
	short := ahead(t, s, claimTasks(t, s, insertTasks(t, s, 1, func(tk *task.Task) { tk.Timeout = time.Minute })...)[0].ID, step)
	patch(t, s, short.ID, bson.D{{Key: "deadlineAt", Value: now.Add(20 * time.Second)}})

	var untouched []*task.Task
	keep := func(tk *task.Task) { untouched = append(untouched, getTask(t, s, tk.ID)) }
	chosen := func(tk *task.Task) { tk.ScheduledAt = now.Add(30 * time.Minute) }
	keep(insertTasks(t, s, 1, chosen)[0])
	keep(scheduled(t, s, []time.Time{now.Add(2 * step)})[0])
	keep(ahead(t, s, scheduled(t, s, []time.Time{now.Add(time.Minute)})[0].ID, step)) // chosen, seen from where the clock was
	keep(insertTasks(t, s, 1, func(tk *task.Task) { tk.ExpiresAt = now.Add(step) })[0])
	keep(claimTasks(t, s, insertTasks(t, s, 1)...)[0])
	ended := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	finishOne(t, s, ended, task.Succeeded)
	keep(ahead(t, s, ended.ID, step))
	barely := ahead(t, s, insertTasks(t, s, 1)[0].ID, time.Second)
	keep(barely)

	require.Equal(t, 6, mend(t, s))
	require.Zero(t, mend(t, s), "once")

	for _, before := range []*task.Task{atOnce, delayed, retried, snoozed} {
		tk := getTask(t, s, before.ID)
		requireSound(t, tk)
		require.Equal(t, task.Pending, tk.State)
		require.Equal(t, before.Seq+1, tk.Seq)
		last := tk.History[len(tk.History)-1]
		require.Equal(t, task.ReasonRescheduled, last.Reason)
		require.Equal(t, "reaper", last.By)
		// By as much as the newest change lay ahead: an hour, less the time that has passed since.
		require.WithinDuration(t, before.ScheduledAt.Add(-step), tk.ScheduledAt, 20*time.Second)
		require.False(t, tk.ScheduledAt.Before(before.ScheduledAt.Add(-step)))
	}
	claimTasks(t, s, atOnce)

	tk := getTask(t, s, running.ID)
	require.Equal(t, running.Seq, tk.Seq, "no transition")
	require.WithinDuration(t, now.Add(task.DefaultLease), tk.LeaseUntil, 20*time.Second)
	require.Equal(t, tk.LeaseUntil, tk.CheckAt)
	require.Empty(t, beat(t, s, owned(tk)...).Lost, "its worker goes on")
	tk = getTask(t, s, short.ID)
	require.Equal(t, now.Add(20*time.Second), tk.LeaseUntil, "no lease goes beyond the deadline")

	for _, before := range untouched {
		require.Equal(t, before, getTask(t, s, before.ID))
	}
}

// More than one batch of both kinds, among more that is to stay.
func TestMendMany(t *testing.T) {
	s := openStore(t)
	now := serverNow(t, s)
	const step = time.Hour
	var documents []any
	add := func(n int, late bool, change func(*task.Task)) {
		for range n {
			tk := newTask(change)
			when := now
			if late {
				when = now.Add(step)
			}
			submit(tk, when)
			doc, err := appendTask(nil, tk)
			require.NoError(t, err)
			documents = append(documents, bson.Raw(doc))
		}
	}
	add(1100, true, func(*task.Task) {})
	add(300, false, func(tk *task.Task) { tk.ScheduledAt = now.Add(step).Add(-immediately) }) // among the others
	add(300, false, func(tk *task.Task) { tk.ExpiresAt = now.Add(step) })
	_, err := s.bulkTasks.InsertMany(t.Context(), documents)
	require.NoError(t, err)
	claimed := claimTasks(t, s, insertTasks(t, s, 200)...)
	_, err = s.tasks.UpdateMany(t.Context(), bson.D{{Key: "_id", Value: in(idsOf(claimed))}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "leaseUntil", Value: now.Add(step)}, {Key: "checkAt", Value: now.Add(step)}}}})
	require.NoError(t, err)

	require.Equal(t, 1300, mend(t, s))
	due, err := s.Due(t.Context(), time.Time{}, serverNow(t, s), 5000)
	require.NoError(t, err)
	require.Len(t, due, 1400)
	over, err := s.SweepCheck(t.Context(), serverNow(t, s).Add(task.DefaultLease), 5000)
	require.NoError(t, err)
	require.ElementsMatch(t, idsOf(claimed), idsOf(over))
	require.Zero(t, mend(t, s))
}
