package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// These reads serve a rebuild of events after a gap: tasks with their whole kept history. Payloads stay behind.

var forRebuild = bson.D{{Key: "payload", Value: 0}, {Key: "payloadRaw", Value: 0}}

// FinishedBetween returns tasks with from <= finishedAt < to, in the order of finishedAt: at most limit.
func (s *Store) FinishedBetween(ctx context.Context, from, to time.Time, limit int) ([]*task.Task, error) {
	found, err := s.rebuilding(ctx, bson.D{{Key: "finishedAt", Value: within(from, to)}}, "finishedAt", limit)
	if err != nil {
		return nil, fmt.Errorf("read finished tasks: %w", err)
	}
	return found, nil
}

// Live returns tasks that have not ended, in the order of their ids, behind afterID: at most limit. It walks the ids of all tasks
// that are not archived, so it is for rebuilds only.
func (s *Store) Live(ctx context.Context, afterID string, limit int) ([]*task.Task, error) {
	live := bson.D{
		{Key: "_id", Value: bson.D{{Key: "$gt", Value: afterID}}},
		{Key: "state", Value: in([]string{string(task.Waiting), string(task.Pending), string(task.Running)})},
	}
	found, err := s.rebuilding(ctx, live, "_id", limit)
	if err != nil {
		return nil, fmt.Errorf("read live tasks: %w", err)
	}
	return found, nil
}

func (s *Store) rebuilding(ctx context.Context, filter bson.D, order string, limit int) ([]*task.Task, error) {
	cursor, err := s.bulkTasks.Find(ctx, filter, options.Find().SetSort(ascending(order)).SetLimit(int64(limit)).
		SetProjection(forRebuild).SetBatchSize(int32(min(limit, maxBatch))))
	if err != nil {
		return nil, err
	}
	return decodeAll(ctx, cursor)
}
