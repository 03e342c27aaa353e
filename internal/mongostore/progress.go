package mongostore

import (
	"context"
	"encoding/json"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// Progress stores what a handler reports while it runs: any JSON up to [task.MaxProgress] bytes, the newest only. It is no
// transition and publishes no event. [task.ErrLeaseLost] means that the execution is no longer valid.
func (s *Store) Progress(ctx context.Context, o task.Owned, progress json.RawMessage) error {
	if len(progress) > task.MaxProgress {
		return fmt.Errorf("progress: %d bytes of JSON, at most %d", len(progress), task.MaxProgress)
	}
	if !validJSON(progress) {
		return fmt.Errorf("progress: not JSON")
	}
	// The guard keeps a worker that lost its lease from writing into another execution. A plain $set evaluates nothing.
	result, err := s.tasks.UpdateOne(ctx, bson.D{
		{Key: "_id", Value: o.ID},
		{Key: "claim", Value: o.Claim},
		{Key: "state", Value: string(task.Running)},
	}, bson.D{{Key: "$set", Value: bson.D{{Key: "progress", Value: string(progress)}}}})
	if err != nil {
		return fmt.Errorf("progress: %w", err)
	}
	if result.MatchedCount == 0 {
		return task.ErrLeaseLost
	}
	return nil
}
