package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// mendSlack is how far ahead of now a time must lie before only a clock that went back explains it.
const mendSlack = 2 * time.Second

// Mend repairs what a step back of the server's clock leaves behind. Leases of running tasks that end later than now + lease would
// keep a dead worker's task for as long as the clock went back: they are pulled in to now + lease. Pending tasks whose newest
// change lies in the future, and which were due at once, after a delay or for a retry, would start that much too late: their scheduledAt is
// pulled back by as much. A start time that a submitter chose stays. It returns how many tasks it changed.
func (s *Store) Mend(ctx context.Context, now time.Time, lease time.Duration) (int, error) {
	leases, err := s.mendLeases(ctx, now, lease)
	if err != nil {
		return leases, fmt.Errorf("mend leases: %w", err)
	}
	starts, err := s.mendStarts(ctx, now)
	if err != nil {
		return leases + starts, fmt.Errorf("mend start times: %w", err)
	}
	return leases + starts, nil
}

func (s *Store) mendLeases(ctx context.Context, now time.Time, lease time.Duration) (int, error) {
	limit := earliest(later("$$NOW", lease.Milliseconds()), "$deadlineAt")
	update, err := bson.Marshal(bson.D{{Key: "$set", Value: bson.D{{Key: "leaseUntil", Value: limit}, {Key: "checkAt", Value: limit}}}})
	if err != nil {
		return 0, err
	}
	// Like a beat, this is no transition. The guard leaves alone what has ended (state) and leases that were written or extended by
	// the clock as it is now (checkAt).
	result, err := s.bulkTasks.UpdateMany(ctx, bson.D{
		{Key: "checkAt", Value: bson.D{{Key: "$gt", Value: now.Add(lease + mendSlack)}}},
		{Key: "state", Value: string(task.Running)},
	}, stages(update))
	if err != nil {
		return 0, err
	}
	return int(result.ModifiedCount), nil
}

func (s *Store) mendStarts(ctx context.Context, now time.Time) (int, error) {
	// One cursor: what is mended moves behind it, and what was chosen is read once, however much that is.
	cursor, err := s.bulkTasks.Find(ctx, bson.D{
		{Key: "state", Value: string(task.Pending)}, {Key: "scheduledAt", Value: bson.D{{Key: "$gt", Value: now.Add(mendSlack)}}},
	}, options.Find().SetSort(ascending("scheduledAt")).SetBatchSize(maxBatch).SetProjection(bson.D{
		{Key: "change", Value: 1}, {Key: "scheduledAt", Value: 1}, {Key: "createdAt", Value: 1}, {Key: "delayMs", Value: 1}}))
	if err != nil {
		return 0, err
	}
	defer cursor.Close(context.WithoutCancel(ctx))
	mended := 0
	var writes []mongo.WriteModel
	for cursor.Next(ctx) {
		t, err := decodeTask(cursor.Current)
		if err != nil {
			return mended, err
		}
		if to, late := startInFuture(t, now); late {
			m := move{from: task.Pending, to: task.Pending, reason: task.ReasonRescheduled, by: task.MoverReaper}
			update, err := m.pipeline(bson.D{{Key: "scheduledAt", Value: literal(to)}})
			if err != nil {
				return mended, err
			}
			// The guard leaves alone what was claimed, cancelled or rescheduled since (state and scheduledAt as read).
			writes = append(writes, mongo.NewUpdateOneModel().SetUpdate(update).SetFilter(bson.D{{Key: "_id", Value: t.ID},
				{Key: "state", Value: string(task.Pending)}, {Key: "scheduledAt", Value: t.ScheduledAt}}))
		}
		if cursor.RemainingBatchLength() > 0 || len(writes) == 0 {
			continue
		}
		result, err := s.bulkTasks.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
		if err != nil {
			return mended, err
		}
		mended += int(result.ModifiedCount)
		writes = nil
	}
	return mended, cursor.Err()
}

// startInFuture tells whether a task's start was computed from a time that has not come yet, and where it belongs now.
func startInFuture(t *task.Task, now time.Time) (to time.Time, late bool) {
	c, err := task.ParseChange(t.Change)
	if err != nil || c.At.Sub(now) <= mendSlack {
		return time.Time{}, false
	}
	// A later start than its insert was the submitter's choice, unless it was given as a delay.
	if c.Reason == task.ReasonSubmitted && t.ScheduledAt.After(t.CreatedAt) && t.Delay == 0 {
		return time.Time{}, false
	}
	return t.ScheduledAt.Add(-c.At.Sub(now)), true
}
