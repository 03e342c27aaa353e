package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
)

// TestLeaderChangesLoseAndRepeatNoSlot kills and pauses the leader of two crons again and again. The schedules' intervals are
// longer than a change of leaders takes, so each slot must have its one task.
func TestLeaderChangesLoseAndRepeatNoSlot(t *testing.T) {
	r := newRig(t)
	for i := range 25 {
		r.put(fmt.Sprintf("five%d", i), "*/5 * * * * *")
	}
	one, other := r.cron(), r.cron()
	leads := func(s *localstack.Service) func() bool {
		return func() bool { return stacktest.Metric(t, s, "ax_lead_leading_bool") == 1 }
	}
	for round := range 4 {
		var leader *localstack.Service
		stacktest.Eventually(t, patience, "one leads", func() bool {
			switch {
			case leads(one)():
				leader = one
			case leads(other)():
				leader = other
			}
			return leader != nil
		})
		standby := other
		if leader == other {
			standby = one
		}
		r.awaitSlots("five0", 2*round+1) // at another moment between slots each time
		if round%2 == 0 {
			require.NoError(t, leader.Kill())
			stacktest.Eventually(t, patience, "the other leads", leads(standby))
			require.NoError(t, leader.Start(t.Context()))
		} else {
			require.NoError(t, leader.Signal(syscall.SIGSTOP))
			stacktest.Eventually(t, patience, "the other leads", leads(standby))
			require.NoError(t, leader.Signal(syscall.SIGCONT)) // and goes on where it was, for a moment
		}
	}
	r.awaitSlots("five0", 9)
	for i := range 25 {
		slots := r.slots(fmt.Sprintf("five%d", i))
		for n := 1; n < len(slots); n++ {
			require.Equal(t, 5*time.Second, slots[n].Sub(slots[n-1]), "five%d misses a slot after %s", i, slots[n-1])
		}
	}
}

func TestMissedSlotsFireOnceForAll(t *testing.T) {
	r := newRig(t)
	began := r.put("often", "@every 1s").NextAt
	r.put("twice", "@every 2s")
	stacktest.Eventually(t, patience, "slots were missed", func() bool { return r.now().Sub(began) > 6*time.Second })
	before := r.now()
	s := r.cron()
	slots := r.awaitSlots("often", 3)
	require.False(t, slots[0].Before(before.Add(-time.Second).Truncate(time.Second)), "only the newest missed slot fires, under its own time")
	require.GreaterOrEqual(t, stacktest.Metric(t, s, "ax_cron_missed_total"), 2.0)
	require.Equal(t, time.Second, slots[2].Sub(slots[1]))
	require.Zero(t, r.slots("twice")[0].Sub(began)%(2*time.Second)-time.Second, "slots stay anchored")
	last := r.schedule("often")
	require.True(t, last.NextAt.After(last.LastAt))
}

func TestASlotThatIsATaskAlreadyHasFired(t *testing.T) {
	r := newRig(t)
	var planted []string
	for i, place := range []string{mongostore.TasksCollection, mongostore.ArchiveCollection} {
		// As another leader left it that died before it moved the schedule on, or as an operator archived it.
		s := r.put(fmt.Sprintf("fired%d", i), "@every 2s")
		id := "cron:" + s.Name + ":" + s.NextAt.Format(time.RFC3339)
		_, err := r.tasks.Database().Collection(place).InsertOne(t.Context(), bson.D{
			{Key: "_id", Value: id}, {Key: "state", Value: "success"}, {Key: "taskType", Value: "report"}, {Key: "source", Value: "cron"},
			{Key: "submitHash", Value: "v1:of another template"}, {Key: "createdAt", Value: s.NextAt},
		})
		require.NoError(t, err)
		planted = append(planted, id)
	}
	s := r.cron()
	r.awaitSlots("fired0", 2)
	r.awaitSlots("fired1", 1)
	require.EqualValues(t, 2, stacktest.Metric(t, s, "ax_cron_slots_total", "existing"))
	stored, err := r.db.Get(t.Context(), planted[0])
	require.NoError(t, err)
	require.Equal(t, task.Success, stored.State, "what is there stays as it is")
	n, err := r.tasks.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: planted[1]}})
	require.NoError(t, err)
	require.Zero(t, n, "an archived slot does not fire again")
}

func TestBrokenSchedulesAreShownAndTheOthersFire(t *testing.T) {
	r := newRig(t)
	r.put("good", "@every 1s")
	spoiled := map[string]func(*task.Schedule){
		"zone":     func(s *task.Schedule) { s.Zone = "../../etc/passwd" },
		"panics":   func(s *task.Schedule) { s.Cron = "TZ=0 * * * * *" },
		"nothing":  func(s *task.Schedule) { s.Cron = "" },
		"template": func(s *task.Schedule) { s.Template = []byte(`{"maxAttempt":3}`) },
		"type":     func(s *task.Schedule) { s.TaskType = "No Type" },
	}
	for name, spoil := range spoiled {
		r.put(name, "@every 1s", spoil)
	}
	s := r.cron()
	r.awaitSlots("good", 3)
	for name := range spoiled {
		require.NotEmpty(t, r.schedule(name).Broken, name)
		require.Zero(t, r.schedule(name).NextAt, name)
		require.Empty(t, r.slots(name))
	}
	require.EqualValues(t, len(spoiled), stacktest.Metric(t, s, "ax_cron_broken_total"))
	require.True(t, stacktest.Ready(t, s))
}

func TestAThousandOfTenThousandFallDueInOneSecond(t *testing.T) {
	r := newRig(t)
	slot := r.now().Add(30 * time.Second).Truncate(time.Second)
	var all sync.WaitGroup
	for part := range 8 {
		all.Go(func() {
			for i := part; i < 10_000; i += 8 {
				r.put(fmt.Sprintf("s%05d", i), "0 0 1 1 *", func(s *task.Schedule) {
					if i%10 == 0 {
						s.Cron, s.NextAt = fmt.Sprintf("%d %d * * * *", slot.Second(), slot.Minute()), slot
					}
				})
			}
		})
	}
	all.Wait()
	s := r.cron()
	stacktest.Eventually(t, patience, "all have fired", func() bool { return stacktest.Metric(t, s, "ax_cron_slots_total", "new") == 1000 })
	n, err := r.tasks.CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.EqualValues(t, 1000, n)
	for i := 0; i < 10_000; i += 990 {
		require.Equal(t, i%10 == 0, len(r.slots(fmt.Sprintf("s%05d", i))) == 1)
	}
	require.Less(t, stacktest.Metric(t, s, "process_resident_memory_bytes"), 200e6)
}

func TestDatabaseClockSteps(t *testing.T) {
	if libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1"); len(libs) == 0 {
		t.Skip("the system package faketime is not installed")
	}
	clock := filepath.Join(t.TempDir(), "clock")
	step := func(offset string) { require.NoError(t, os.WriteFile(clock, []byte(offset), 0o600)) }
	step("+0")
	db := stacktest.StartMongo(t, localstack.MongoOptions{FaketimeFile: clock})
	r := newRigOn(t, db.URI(), "ax")
	r.put("two", "@every 2s")
	r.cron()
	slots := r.awaitSlots("two", 2)

	step("+3600")
	ahead := slots[0].Add(50 * time.Minute)
	for len(slots) < 5 || slots[len(slots)-2].Before(ahead) {
		slots = r.awaitSlots("two", len(slots)+1)
	}
	require.Less(t, len(slots), 30, "an hour forward is one slot, not 1,800")

	step("+0")
	r.early = 1
	stacktest.Eventually(t, patience, "it fires in the present again", func() bool {
		present := 0
		for _, slot := range r.slots("two") {
			if slot.Before(ahead) && slot.After(slots[0].Add(20*time.Second)) {
				present++
			}
		}
		return present >= 3
	})
}
