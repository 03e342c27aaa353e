package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// Limits of a page of List.
const (
	DefaultPage = 50
	MaxPage     = 1000
)

// Get returns a task with its whole kept history, from the archive when it ended long ago. [task.ErrNotFound] when there is none.
func (s *Store) Get(ctx context.Context, id string) (*task.Task, error) {
	// In this order: the archiver copies before it deletes, so a task on its way is found.
	for _, from := range []*mongo.Collection{s.tasks, s.archive} {
		raw, err := from.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Raw()
		if errors.Is(err, mongo.ErrNoDocuments) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get task: %w", err)
		}
		return decodeTask(raw)
	}
	return nil, task.ErrNotFound
}

// inList leaves out what makes a page heavy.
var inList = bson.D{{Key: "payload", Value: 0}, {Key: "payloadRaw", Value: 0}, {Key: "result", Value: 0}, {Key: "history", Value: 0}}

// List returns a page of tasks that are not archived, without payload, result and history, by id from the greatest down: ids made
// by ax rise with time, so that is newest first. taskType and state may be empty for all; after is the last id of the page before;
// limit 0 is [DefaultPage]. It is for people: its cost may grow with the number of tasks.
func (s *Store) List(ctx context.Context, taskType string, state task.State, limit int, after string) ([]*task.Task, error) {
	if limit == 0 {
		limit = DefaultPage
	}
	limit = min(max(limit, 1), MaxPage)
	filter := bson.D{}
	if state != "" {
		filter = append(filter, bson.E{Key: "state", Value: string(state)})
	}
	if taskType != "" {
		filter = append(filter, bson.E{Key: "taskType", Value: taskType})
	}
	if after != "" {
		filter = append(filter, bson.E{Key: "_id", Value: bson.D{{Key: "$lt", Value: after}}})
	}
	cursor, err := s.bulkTasks.Find(ctx, filter, options.Find().SetProjection(inList).
		SetSort(bson.D{{Key: "_id", Value: -1}}).SetLimit(int64(limit)).SetBatchSize(int32(limit)))
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	tasks, err := decodeAll(ctx, cursor)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return tasks, nil
}
