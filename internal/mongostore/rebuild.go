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

// EachLive hands all tasks that have not ended to visit, in the order of their ids, in batches of what the server sends at once
// (16 MB at most). Each is as it was when its batch was read. It looks at all tasks that are not archived, once, so it is for
// rebuilds only; visit may take up to ten minutes for a batch.
func (s *Store) EachLive(ctx context.Context, visit func([]*task.Task) error) error {
	cursor, err := s.bulkTasks.Find(ctx, bson.D{
		{Key: "state", Value: in([]string{string(task.Waiting), string(task.Pending), string(task.Running)})},
	}, options.Find().SetSort(ascending("_id")).SetProjection(forRebuild).SetBatchSize(maxBatch))
	if err != nil {
		return fmt.Errorf("read live tasks: %w", err)
	}
	return eachBatch(ctx, "read live tasks", cursor, decodeTask, visit)
}

// eachBatch hands what a cursor finds to visit, in batches of what the server sends at once. Errors of reading say what was read, those
// of visit are returned as they are.
func eachBatch[T any](ctx context.Context, what string, cursor *mongo.Cursor, decode func(bson.Raw) (T, error), visit func([]T) error) error {
	defer cursor.Close(context.WithoutCancel(ctx))
	var batch []T
	for cursor.Next(ctx) {
		one, err := decode(cursor.Current)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if batch = append(batch, one); cursor.RemainingBatchLength() > 0 {
			continue
		}
		if err := visit(batch); err != nil {
			return err
		}
		batch = nil
	}
	if err := cursor.Err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (s *Store) rebuilding(ctx context.Context, filter bson.D, order string, limit int) ([]*task.Task, error) {
	cursor, err := s.bulkTasks.Find(ctx, filter, options.Find().SetSort(ascending(order)).SetLimit(int64(limit)).
		SetProjection(forRebuild).SetBatchSize(int32(min(limit, maxBatch))))
	if err != nil {
		return nil, err
	}
	return decodeAll(ctx, cursor)
}
