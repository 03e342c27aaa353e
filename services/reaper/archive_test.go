package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// ended plants tasks that ended so long ago, within a few seconds, as copies of one that was stored in the regular way.
func (r *rig) ended(name string, n int, state task.State, ago time.Duration) (ids []string) {
	r.t.Helper()
	at := r.now().Add(-ago)
	model := r.submit(name+"-model", 1)[0]
	_, _, err := r.db.Cancel(r.t.Context(), model, "test")
	require.NoError(r.t, err)
	var doc bson.D
	require.NoError(r.t, r.tasks().FindOneAndDelete(r.t.Context(), bson.D{{Key: "_id", Value: model}}).Decode(&doc))
	docs := make([]any, n)
	for i := range docs {
		one := append(bson.D(nil), doc...)
		id := fmt.Sprintf("%s-%05d", name, i)
		ids = append(ids, id)
		for k, e := range one {
			switch e.Key {
			case "_id":
				one[k].Value = id
			case "state":
				one[k].Value = string(state)
			case "finishedAt":
				one[k].Value = at.Add(time.Duration(i/7) * time.Millisecond)
			}
		}
		docs[i] = one
	}
	_, err = r.tasks().InsertMany(r.t.Context(), docs)
	require.NoError(r.t, err)
	return ids
}

func (r *rig) now() time.Time {
	r.t.Helper()
	now, _, err := r.db.Now()
	require.NoError(r.t, err)
	return now
}

// read notes that the readers of the change stream have seen everything up to then.
func (r *rig) read(at time.Time) {
	r.t.Helper()
	for _, name := range []string{"dispatcher", "notifier"} {
		require.NoError(r.t, r.db.SaveCursor(r.t.Context(), name, []byte("place"), at, 1))
	}
}

func (r *rig) archived() *mongo.Collection {
	return r.tasks().Database().Collection(mongostore.ArchiveCollection)
}

func (r *rig) count(c *mongo.Collection) int64 {
	r.t.Helper()
	n, err := c.CountDocuments(r.t.Context(), bson.D{})
	require.NoError(r.t, err)
	return n
}

func (r *rig) archiver(env ...string) *localstack.Service {
	r.t.Helper()
	return r.reaper(3*time.Second, append([]string{"AX_REAPER_ARCHIVE_EVERY=50ms", "AX_REAPER_KEEP_SUCCESS=2h", "AX_REAPER_KEEP_FAILED=4h", "AX_REAPER_KEEP_CANCELLED=2h",
		"AX_REAPER_KEEP_ARCHIVED=12h"}, env...)...)
}

func TestWhatEndedLongAgoIsArchivedAndLaterDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read(r.now())
	success := r.ended("success", 500, task.Success, 3*time.Hour)
	r.ended("failed", 20, task.Failed, 3*time.Hour)
	failed := r.ended("failed-long-ago", 10, task.Failed, 5*time.Hour)
	r.ended("recent", 30, task.Success, time.Hour)
	live := r.submit("live", 5)
	s := r.archiver()
	moved := int64(len(success) + len(failed))
	stacktest.Eventually(t, patience, "what is old enough is archived, and counted once it is deleted here", func() bool {
		return r.count(r.archived()) == moved && r.count(r.tasks()) == 55 && stacktest.Metric(t, s, "ax_reaper_archived_total") == float64(moved)
	})
	for _, id := range []string{success[0], failed[9], live[0]} {
		r.get(id)
	}

	// Later is a matter of the end of a task: those are old already.
	require.NoError(t, s.Stop(10*time.Second))
	r.ended("ancient", 700, task.Success, 13*time.Hour)
	s = r.archiver()
	stacktest.Eventually(t, patience, "they are archived and deleted", func() bool {
		return stacktest.Metric(t, s, "ax_reaper_archived_total") == 700 && stacktest.Metric(t, s, "ax_reaper_purged_total") == 700
	})
	require.Equal(t, []int64{55, moved}, []int64{r.count(r.tasks()), r.count(r.archived())})
}

func TestNothingIsArchivedThatAReaderOfTheStreamMayNotHaveSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ended("seen", 10, task.Success, 10*time.Hour)
	r.ended("unseen", 10, task.Success, 3*time.Hour)
	s := r.archiver()
	r.trusting(s)
	turns := func() { // each leads to a turn of the archiver, or comes after one
		for range 3 {
			r.archived()
			alive := r.submit(fmt.Sprintf("alive-%d", rand.Int()), 1)
			r.claim("w2", time.Millisecond, alive...)
			r.awaitChange(alive[0], task.ReasonLeaseExpired)
		}
	}
	turns()
	require.Zero(t, r.count(r.archived()), "the notifier has never run")
	r.read(r.now().Add(-4 * time.Hour))
	stacktest.Eventually(t, patience, "what it has seen is archived", func() bool { return r.count(r.archived()) == 10 })
	turns()
	require.EqualValues(t, 10, r.count(r.archived()))
	r.read(r.now())
	stacktest.Eventually(t, patience, "and the rest when it has seen that", func() bool { return r.count(r.archived()) == 20 })
}

func TestScenario21AndM19ArchiversThatAreKilledLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read(r.now())
	const many = 3000
	ids := r.ended("done", many, task.Success, 3*time.Hour)
	// Five were copied by an archiver that died before it could delete them.
	copied, err := r.tasks().Find(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids[100:105]}}}})
	require.NoError(t, err)
	var docs []any
	for copied.Next(t.Context()) {
		docs = append(docs, append(bson.Raw(nil), copied.Current...))
	}
	_, err = r.archived().InsertMany(t.Context(), docs)
	require.NoError(t, err)
	// Two hundred more whose last worker is lost, for the other sweeps.
	most := 0
	lost := r.submitLost("lost", 200, most)

	env := []string{"AX_REAPER_ARCHIVE_BATCH=50", "AX_REAPER_LOCK_TTL=1s"}
	reapers := []*localstack.Service{r.archiver(env...), r.archiver(env...), r.archiver(env...)}
	done := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() { // every task is there at every moment
		for {
			select {
			case <-done:
				return
			default:
			}
			id := ids[rand.IntN(many)]
			if _, err := r.db.Get(t.Context(), id); err != nil {
				t.Errorf("get %s: %v", id, err)
				return
			}
		}
	})
	kills := 0
	stacktest.Eventually(t, 2*patience, "all are archived", func() bool {
		if n := r.count(r.archived()); n < many && kills < 8 && n > int64(kills)*many/9 {
			victim := reapers[kills%len(reapers)]
			require.NoError(t, victim.Kill())
			require.NoError(t, victim.Start(t.Context()))
			kills++
		}
		return r.count(r.archived()) == many && r.count(r.tasks()) == int64(len(lost))
	})
	close(done)
	reading.Wait()
	require.GreaterOrEqual(t, kills, 4)
	for _, id := range lost {
		got, _ := r.awaitChange(id, task.ReasonWorkerLost)
		require.Equal(t, []any{task.Failed, 1}, []any{got.State, got.Losses}, "failed once")
	}
	for _, s := range reapers {
		require.NotContains(t, s.Output(), "E11000")
	}
}

// submitLost stores tasks whose only worker is lost.
func (r *rig) submitLost(name string, n, maxLosses int) []string {
	r.t.Helper()
	ids := r.submit(name, n, func(s *events.Submit) { s.MaxLosses = &maxLosses })
	r.claim("w1", time.Millisecond, ids...)
	return ids
}
