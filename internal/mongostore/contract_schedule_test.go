package mongostore

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

var slot = time.Date(2026, 3, 4, 5, 0, 0, 0, time.UTC)

func schedule(name string, change ...func(*task.Schedule)) task.Schedule {
	d := task.Schedule{Name: name, Cron: "0 * * * *", Zone: "Europe/Berlin", Misfire: task.MisfireAll, CatchUp: 90 * time.Minute, CatchUpMax: 7, Overlap: task.OverlapAllow,
		TaskType: "report", Template: json.RawMessage(`{"type": "report",  "payload": {"n": 1.50, "$x": "$y"}}`), Anchor: slot.Add(-time.Hour), NextAt: slot}
	for _, c := range change {
		c(&d)
	}
	return d
}

// putSchedule stores a schedule as new and returns it as it stands.
func putSchedule(t *testing.T, s *Store, d task.Schedule) task.Schedule {
	t.Helper()
	stored, err := s.PutSchedule(t.Context(), d)
	require.NoError(t, err)
	require.True(t, stored)
	return scheduleOf(t, s, d.Name)
}

func scheduleOf(t *testing.T, s *Store, name string) task.Schedule {
	t.Helper()
	d, err := s.Schedule(t.Context(), name)
	require.NoError(t, err)
	return d
}

func advance(t *testing.T, s *Store, moves ...task.Advance) int {
	t.Helper()
	n, err := s.Advance(t.Context(), moves)
	require.NoError(t, err)
	return n
}

func TestScheduleIsKeptWhole(t *testing.T) {
	s := openStore(t)
	want := schedule("hourly", func(d *task.Schedule) { d.LastAt = slot.Add(-time.Hour) })
	got := putSchedule(t, s, want)
	want.Revision = 1
	require.Equal(t, want, got, "the template byte for byte")

	bare := task.Schedule{Name: "bare", Cron: "@daily", TaskType: "report", Broken: "no such zone"}
	got = putSchedule(t, s, bare)
	bare.Revision = 1
	require.Equal(t, bare, got)
	_, err := s.Schedule(t.Context(), "none")
	require.ErrorIs(t, err, task.ErrNotFound)
}

// An edit that rests on an old reading is refused, whatever happened since: made, edited, moved on or removed.
func TestScheduleEditGuard(t *testing.T) {
	s := openStore(t)
	refused := func(d task.Schedule) {
		t.Helper()
		stored, err := s.PutSchedule(t.Context(), d)
		require.NoError(t, err)
		require.False(t, stored)
	}
	first := putSchedule(t, s, schedule("a"))
	refused(schedule("a", func(d *task.Schedule) { d.Cron = "@daily" })) // there is one already
	require.Equal(t, first, scheduleOf(t, s, "a"))

	edit := first
	edit.Cron = "5 * * * *"
	second := putSchedule(t, s, edit)
	require.Equal(t, first.Revision+1, second.Revision)
	edit.Cron = "9 * * * *"
	refused(edit)
	require.Equal(t, second, scheduleOf(t, s, "a"))

	require.Equal(t, 1, advance(t, s, task.Advance{Name: "a", Revision: second.Revision, From: slot, To: slot.Add(time.Hour), LastAt: slot}))
	moved := scheduleOf(t, s, "a")
	refused(second)
	require.Equal(t, moved, scheduleOf(t, s, "a"))

	for _, there := range []bool{true, false} {
		removed, err := s.DeleteSchedule(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, there, removed)
	}
	refused(moved)
	_, err := s.Schedule(t.Context(), "a")
	require.ErrorIs(t, err, task.ErrNotFound, "an edit does not bring it back")
}

// Of all who make or edit a schedule at the same moment, one gets through.
func TestScheduleEditRace(t *testing.T) {
	s := openStore(t)
	d := schedule("a")
	for range 4 {
		var through atomic.Int64
		var all sync.WaitGroup
		for i := range 16 {
			mine := d
			mine.TaskType = fmt.Sprint("t", i)
			all.Go(func() {
				stored, err := s.PutSchedule(t.Context(), mine)
				if err != nil {
					t.Errorf("put: %v", err)
				}
				if stored {
					through.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, through.Load())
		now := scheduleOf(t, s, "a")
		require.Equal(t, d.Revision+1, now.Revision)
		d = now
	}
}

func namesOf(found []task.Schedule) []string {
	names := []string{}
	for _, d := range found {
		names = append(names, d.Name)
	}
	return names
}

func TestSchedulesByNameAndByTime(t *testing.T) {
	s := openStore(t)
	for name, next := range map[string]time.Time{"c": slot, "a": slot.Add(time.Minute), "d": slot.Add(-time.Minute), "b": {}} {
		putSchedule(t, s, schedule(name, func(d *task.Schedule) {
			if d.NextAt = next; next.IsZero() {
				d.Broken = "no such zone"
			}
		}))
	}
	for _, c := range []struct {
		after string
		limit int
		want  []string
	}{{"", 10, []string{"a", "b", "c", "d"}}, {"", 2, []string{"a", "b"}}, {"b", 2, []string{"c", "d"}}, {"d", 2, []string{}}} {
		found, err := s.Schedules(t.Context(), c.after, c.limit)
		require.NoError(t, err)
		require.Equal(t, c.want, namesOf(found))
	}
	for _, c := range []struct {
		until time.Time
		limit int
		want  []string
	}{
		{slot.Add(time.Hour), 10, []string{"d", "c", "a"}}, // what is broken never comes
		{slot, 10, []string{"d", "c"}},                     // the very time counts
		{slot, 1, []string{"d"}},
		{slot.Add(-time.Hour), 10, []string{}},
	} {
		found, err := s.DueSchedules(t.Context(), c.until, c.limit)
		require.NoError(t, err)
		require.Equal(t, c.want, namesOf(found))
	}
}

func TestAdvance(t *testing.T) {
	s := openStore(t)
	before := putSchedule(t, s, schedule("a"))
	require.Zero(t, advance(t, s))

	require.Equal(t, 1, advance(t, s, task.Advance{Name: "a", Revision: 1, From: slot, To: slot.Add(time.Hour), LastAt: slot}))
	want := before
	want.NextAt, want.LastAt, want.Revision = slot.Add(time.Hour), slot, 2
	require.Equal(t, want, scheduleOf(t, s, "a"), "nothing else changes")

	// A slot that is passed over leaves the one that fired last.
	require.Equal(t, 1, advance(t, s, task.Advance{Name: "a", Revision: 2, From: slot.Add(time.Hour), To: slot.Add(2 * time.Hour)}))
	want.NextAt, want.Revision = slot.Add(2*time.Hour), 3
	require.Equal(t, want, scheduleOf(t, s, "a"))

	// One that cannot go on says why, and is never due again.
	require.Equal(t, 1, advance(t, s, task.Advance{Name: "a", Revision: 3, From: slot.Add(2 * time.Hour), Broken: "$no such zone"}))
	want.NextAt, want.Broken, want.Revision = time.Time{}, "$no such zone", 4
	require.Equal(t, want, scheduleOf(t, s, "a"))
	due, err := s.DueSchedules(t.Context(), slot.Add(1000*time.Hour), 10)
	require.NoError(t, err)
	require.Empty(t, due)
}

// A position moves only from where it was read, and not past an edit; two leaders never move one slot twice.
func TestAdvanceGuard(t *testing.T) {
	s := openStore(t)
	putSchedule(t, s, schedule("moved"))
	edited := putSchedule(t, s, schedule("edited"))
	putSchedule(t, s, schedule("elsewhere"))
	putSchedule(t, s, schedule("same"))
	move := func(name string) task.Advance {
		return task.Advance{Name: name, Revision: 1, From: slot, To: slot.Add(time.Hour), LastAt: slot}
	}
	require.Equal(t, 1, advance(t, s, move("moved")))
	edited.Cron, edited.NextAt = "30 * * * *", slot // the same next slot, by another rule
	edited = putSchedule(t, s, edited)
	patchIn(t, s, schedulesCollection, "elsewhere", bson.D{{Key: "nextAt", Value: slot.Add(time.Minute)}})
	stay := []task.Schedule{scheduleOf(t, s, "moved"), edited, scheduleOf(t, s, "elsewhere")}

	require.Equal(t, 1, advance(t, s, move("moved"), move("edited"), move("elsewhere"), move("gone"), move("same")))
	for _, d := range stay {
		require.Equal(t, d, scheduleOf(t, s, d.Name))
	}
	require.Equal(t, slot.Add(time.Hour), scheduleOf(t, s, "same").NextAt)
	_, err := s.Schedule(t.Context(), "gone")
	require.ErrorIs(t, err, task.ErrNotFound)

	var total atomic.Int64
	var leaders sync.WaitGroup
	for range 8 {
		leaders.Go(func() {
			n, err := s.Advance(t.Context(), []task.Advance{{Name: "same", Revision: 2, From: slot.Add(time.Hour), To: slot.Add(2 * time.Hour), LastAt: slot.Add(time.Hour)}})
			if err != nil {
				t.Errorf("advance: %v", err)
			}
			total.Add(int64(n))
		})
	}
	leaders.Wait()
	require.EqualValues(t, 1, total.Load())
}

func TestAdvanceMany(t *testing.T) {
	s := openStore(t)
	const all = maxBatch + 50
	documents := make([]any, all)
	moves := make([]task.Advance, all)
	for i := range all {
		documents[i] = scheduleDocument{Name: fmt.Sprintf("s%04d", i), Cron: "0 * * * *", TaskType: "report", NextAt: slot, Revision: 1}
		moves[i] = task.Advance{Name: fmt.Sprintf("s%04d", i), Revision: 1, From: slot, To: slot.Add(time.Hour), LastAt: slot}
	}
	_, err := s.schedules().InsertMany(t.Context(), documents)
	require.NoError(t, err)
	require.Equal(t, all, advance(t, s, moves...))
	due, err := s.DueSchedules(t.Context(), slot, all)
	require.NoError(t, err)
	require.Empty(t, due)
}
