package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	// mendSlack is how far ahead of now a time must lie before only a clock that went back explains it.
	mendSlack = 2 * time.Second
	mendBatch = 500
)

// Mend repairs what a step back of the server's clock leaves behind. Leases of running tasks that end later than now + lease would
// keep a dead worker's task for as long as the clock went back: they are pulled in to now + lease. Pending tasks whose newest
// change lies in the future, and which were due at once or wait for a retry, would start that much too late: their scheduledAt is
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
	mended := 0
	for from := now.Add(lease + mendSlack); ; {
		cursor, err := s.bulkTasks.Find(ctx, bson.D{{Key: "checkAt", Value: bson.D{{Key: "$gt", Value: from}}}}, options.Find().
			SetSort(ascending("checkAt")).SetLimit(mendBatch).SetProjection(forReaper))
		if err != nil {
			return mended, err
		}
		found, err := decodeAll(ctx, cursor)
		if err != nil {
			return mended, err
		}
		moved := 0
		for _, t := range found {
			if t.State != task.Running {
				continue
			}
			limit := earliest(later("$$NOW", lease.Milliseconds()), "$deadlineAt")
			update, err := bson.Marshal(bson.D{{Key: "$set", Value: bson.D{{Key: "leaseUntil", Value: limit}, {Key: "checkAt", Value: limit}}}})
			if err != nil {
				return mended, err
			}
			// Like a beat, this is no transition. The guard leaves alone what was beaten, reported or revived since (claim and
			// leaseUntil as read).
			result, err := s.tasks.UpdateOne(ctx, bson.D{{Key: "_id", Value: t.ID}, {Key: "state", Value: string(task.Running)},
				{Key: "claim", Value: t.Claim}, {Key: "leaseUntil", Value: t.LeaseUntil}}, stages(update))
			if err != nil {
				return mended, err
			}
			moved += int(result.ModifiedCount)
		}
		mended += moved
		if len(found) < mendBatch {
			return mended, nil
		}
		if moved == 0 { // many have the same time: a page is left only when nothing in it was to be mended
			from = found[len(found)-1].CheckAt
		}
	}
}

func (s *Store) mendStarts(ctx context.Context, now time.Time) (int, error) {
	mended := 0
	for from := now.Add(mendSlack); ; {
		cursor, err := s.bulkTasks.Find(ctx, bson.D{{Key: "state", Value: string(task.Pending)}, {Key: "scheduledAt", Value: bson.D{{Key: "$gt", Value: from}}}},
			options.Find().SetSort(ascending("scheduledAt")).SetLimit(mendBatch).SetProjection(bson.D{
				{Key: "change", Value: 1}, {Key: "scheduledAt", Value: 1}, {Key: "createdAt", Value: 1}, {Key: "state", Value: 1}}))
		if err != nil {
			return mended, err
		}
		found, err := decodeAll(ctx, cursor)
		if err != nil {
			return mended, err
		}
		moved := 0
		for _, t := range found {
			to, late := startInFuture(t, now)
			if !late {
				continue
			}
			m := move{from: task.Pending, to: task.Pending, reason: task.ReasonRescheduled, by: task.MoverReaper}
			update, err := m.pipeline(bson.D{{Key: "scheduledAt", Value: literal(to)}})
			if err != nil {
				return mended, err
			}
			// The guard leaves alone what was claimed, cancelled or rescheduled since (state and scheduledAt as read).
			result, err := s.tasks.UpdateOne(ctx, bson.D{{Key: "_id", Value: t.ID}, {Key: "state", Value: string(task.Pending)},
				{Key: "scheduledAt", Value: t.ScheduledAt}}, update)
			if err != nil {
				return mended, err
			}
			moved += int(result.ModifiedCount)
		}
		mended += moved
		if len(found) < mendBatch {
			return mended, nil
		}
		if moved == 0 {
			from = found[len(found)-1].ScheduledAt
		}
	}
}

// startInFuture tells whether a task's start was computed from a time that has not come yet, and where it belongs now.
func startInFuture(t *task.Task, now time.Time) (to time.Time, late bool) {
	c, err := task.ParseChange(t.Change)
	if err != nil || c.At.Sub(now) <= mendSlack {
		return time.Time{}, false
	}
	// A later start than its insert was the submitter's choice.
	if c.Reason == task.ReasonSubmitted && t.ScheduledAt.After(t.CreatedAt) {
		return time.Time{}, false
	}
	return t.ScheduledAt.Add(-c.At.Sub(now)), true
}
