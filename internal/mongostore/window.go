package mongostore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/ax-scheduler/ax/internal/task"
)

// These reads find work. Each names one index and a window of its last range, because a limit alone does not bound what some
// servers read: they collect every match first.

// claimOrder is the whole key of the claim index: planners that are simple take an index for a sort only if it is.
var claimOrder = ascending("state", "taskType", "channel", "priority", "scheduledAt", "_id")

var candidateFields = bson.D{{Key: "taskType", Value: 1}, {Key: "channel", Value: 1}, {Key: "priority", Value: 1},
	{Key: "scheduledAt", Value: 1}, {Key: "seq", Value: 1}, {Key: "attempts", Value: 1}}

func pendingOf(taskType, channel string, priority int) bson.D {
	return bson.D{{Key: "state", Value: string(task.Pending)}, {Key: "taskType", Value: taskType},
		{Key: "channel", Value: channel}, {Key: "priority", Value: int32(priority)}}
}

// within is the condition from <= field < to; a zero time leaves its side open. Every date lies within two zero times.
func within(from, to time.Time) bson.D {
	var d bson.D
	if from.IsZero() && to.IsZero() {
		from = longAgo // no condition at all would be one of equality, with an empty document
	}
	if !from.IsZero() {
		d = append(d, bson.E{Key: "$gte", Value: from})
	}
	if !to.IsZero() {
		d = append(d, bson.E{Key: "$lt", Value: to})
	}
	return d
}

// Candidates returns the pending tasks of a window, in order of scheduledAt, then id: at most w.Limit.
func (s *Store) Candidates(ctx context.Context, w task.Window) ([]task.Candidate, error) {
	filter := append(pendingOf(w.Type, w.Channel, w.Priority), bson.E{Key: "scheduledAt", Value: within(w.From, w.To)})
	found, err := s.candidates(ctx, filter, claimOrder, w.Limit)
	if err != nil {
		return nil, fmt.Errorf("read candidates: %w", err)
	}
	return found, nil
}

// Front returns the earliest scheduledAt of the pending tasks of one type, channel and priority; false when there is none. It has
// no window, so on a deep backlog it may be slow on servers that do not stop at a limit.
func (s *Store) Front(ctx context.Context, taskType, channel string, priority int) (time.Time, bool, error) {
	// Every task has a start time. Asking for it has all servers look in the claim index for this priority alone; without it some
	// look through all that is pending to find that there is none.
	filter := append(pendingOf(taskType, channel, priority), bson.E{Key: "scheduledAt", Value: within(time.Time{}, time.Time{})})
	found, err := s.candidates(ctx, filter, claimOrder, 1)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read front: %w", err)
	}
	if len(found) == 0 {
		return time.Time{}, false, nil
	}
	return found[0].ScheduledAt, true, nil
}

// Due returns pending tasks of every type with from <= scheduledAt < to, in order of scheduledAt, then id: at most limit. A zero
// from means from the beginning.
func (s *Store) Due(ctx context.Context, from, to time.Time, limit int) ([]task.Candidate, error) {
	filter := bson.D{{Key: "state", Value: string(task.Pending)}, {Key: "scheduledAt", Value: within(from, to)}}
	found, err := s.candidates(ctx, filter, ascending("scheduledAt"), limit)
	if err != nil {
		return nil, fmt.Errorf("read due tasks: %w", err)
	}
	slices.SortStableFunc(found, func(a, b task.Candidate) int {
		if c := a.ScheduledAt.Compare(b.ScheduledAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return found, nil
}

func (s *Store) candidates(ctx context.Context, filter, sort bson.D, limit int) ([]task.Candidate, error) {
	cursor, err := s.bulkTasks.Find(ctx, filter, options.Find().SetSort(sort).SetLimit(int64(limit)).
		SetProjection(candidateFields).SetBatchSize(int32(min(limit, maxBatch))))
	if err != nil {
		return nil, err
	}
	defer cursor.Close(context.WithoutCancel(ctx))
	var found []task.Candidate
	for cursor.Next(ctx) {
		found = append(found, candidateOf(cursor))
	}
	return found, cursor.Err()
}

func candidateOf(cursor *mongo.Cursor) task.Candidate {
	d := bsoncore.Document(cursor.Current)
	c := task.Candidate{ID: text(d.Lookup("_id")), Type: text(d.Lookup("taskType")), Channel: text(d.Lookup("channel"))}
	c.Priority, c.Attempts = number(d.Lookup("priority")), number(d.Lookup("attempts"))
	c.Seq, c.ScheduledAt = int64(number(d.Lookup("seq"))), date(d.Lookup("scheduledAt"))
	return c
}
