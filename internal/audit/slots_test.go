package audit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/audit"
	"github.com/ax-scheduler/ax/internal/task"
)

func slotOf(name string, at time.Time) string {
	return "cron:" + name + ":" + at.UTC().Format(time.RFC3339)
}

func TestSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	anchor := r.now.Truncate(time.Second).Add(-10 * time.Minute)
	last := anchor.Add(10 * time.Minute)
	put := func(name string) {
		stored, err := r.store.PutSchedule(t.Context(), task.Schedule{Name: name, Cron: "@every 10m", Misfire: task.MisfireOnce, TaskType: "report",
			Anchor: anchor, LastAt: last, NextAt: last.Add(10 * time.Minute)})
		require.NoError(t, err)
		require.True(t, stored)
		r.insert(slotOf(name, last))
	}
	place := func(name string, pairs ...any) {
		r.damage("schedules", name, bson.D{{Key: "$set", Value: doc(pairs...)}})
	}
	expect := func(want ...string) {
		t.Helper()
		found, sum := r.audit()
		require.Equal(t, want, found)
		require.Equal(t, 1, sum.Schedules)
	}
	put("s")
	expect()

	other := "cron:s:" + last.In(time.FixedZone("", 3600)).Format(time.RFC3339)
	r.insert(other, func(t *task.Task) { t.Type = "report" })
	expect("slot_twice " + other)
	_, err := r.db.Collection("tasks").DeleteOne(t.Context(), doc("_id", slotOf("s", last)))
	require.NoError(t, err)
	// Now the slot has one task, which is not under the id of the slot.
	expect("slot_skipped " + slotOf("s", last))
	r.insert(slotOf("s", last))
	_, err = r.db.Collection("tasks").DeleteOne(t.Context(), doc("_id", other))
	require.NoError(t, err)
	expect()

	next := last.Add(10 * time.Minute)
	place("s", "nextAt", next.Add(10*time.Minute))
	expect("slot_skipped " + slotOf("s", next))

	place("s", "nextAt", last.Add(-5*time.Minute))
	expect() // nobody fires slots at the moment
	_, err = r.store.Acquire(t.Context(), "cron", "me", time.Minute)
	require.NoError(t, err)
	expect("slot_skipped " + slotOf("s", last.Add(-5*time.Minute)))
	place("s", "nextAt", r.ago(10*time.Second))
	expect() // it may be on its way
	found, sum := r.audit(func(o *audit.Options) { o.Type = "email" })
	require.Empty(t, found)
	require.Zero(t, sum.Schedules)
}
