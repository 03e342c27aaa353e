package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// tasks is the collection itself, to plant what no part of ax writes.
func (r *rig) tasks() *mongo.Collection {
	return r.raw.Database(r.database).Collection(mongostore.TasksCollection)
}

func TestScenarioM04AnOldLeaseRevivesNothingThatHasEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.submit("ended", 3)
	for i, one := range r.claim("w1", time.Minute, ids...) {
		kind := []task.OutcomeKind{task.Succeeded, task.FailedForGood, task.Succeeded}[i]
		outcome := task.Outcome{Owned: task.Owned{ID: one.ID, Claim: one.Claim}, Worker: "w1", Kind: kind, Task: one}
		if kind != task.Succeeded {
			outcome.Error = &task.Error{Message: "no", Cause: "error"}
		}
		answers, err := r.db.Finish(t.Context(), []task.Outcome{outcome})
		require.NoError(t, err)
		require.NoError(t, answers[0])
		stored := r.get(one.ID)
		require.Zero(t, stored.LeaseUntil)
		require.Zero(t, stored.CheckAt)
		require.Empty(t, stored.WorkerID, "the end clears them in its own write")
	}
	past := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	for _, id := range ids {
		set := bson.D{{Key: "leaseUntil", Value: past}, {Key: "checkAt", Value: past}, {Key: "workerId", Value: "w1"}}
		_, err := r.tasks().UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: set}})
		require.NoError(t, err)
	}
	planted := []*task.Task{r.get(ids[0]), r.get(ids[1]), r.get(ids[2])}

	s := r.reaper(time.Second)
	r.trusting(s)
	for range 5 { // each of these is revived by a sweep that sees the others too
		alive := r.submit("alive"+events.NewToken()[:6], 1)
		r.claim("w2", time.Millisecond, alive...)
		r.awaitChange(alive[0], task.ReasonLeaseExpired)
	}
	require.Equal(t, planted, []*task.Task{r.get(ids[0]), r.get(ids[1]), r.get(ids[2])})
	require.EqualValues(t, 5, stacktest.Metric(t, s, "ax_reaper_revived_total"))
}

func TestScenario05TwentyDeathsEndInAStatedWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.reaper(time.Second)
	r.trusting(s)
	const deaths = 20
	most := deaths - 1
	id := r.submit("deadly", 1, func(s *events.Submit) { s.MaxLosses = &most })[0]
	tasks := r.tasks()
	for n := range deaths {
		// What was lost before waits for a while; here it does not.
		_, err := tasks.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "scheduledAt", Value: time.Now().Add(-time.Minute)}}}})
		require.NoError(t, err)
		r.claim("w"+events.NewToken(), time.Millisecond, id)
		stacktest.Eventually(t, patience, "its lease is over", func() bool { return r.get(id).Losses == n+1 })
	}
	got := r.get(id)
	last := got.History[len(got.History)-1]
	require.Equal(t, []any{task.Failed, task.ReasonWorkerLost, deaths, 0, deaths}, []any{got.State, last.Reason, got.Attempts, got.Failures, got.Losses})
	require.Contains(t, got.LastError.Message, "worker")
	require.Empty(t, got.WorkerID)
	require.Zero(t, got.LeaseUntil)
}
