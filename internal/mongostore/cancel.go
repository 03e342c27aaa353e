package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// cancelTries bounds the race with claims and reports: a task changes hands far less often than this in so short a time.
const cancelTries = 8

// Cancel ends a task that does not run, or asks the worker of one that does; by says who wants it. It returns the task as it is
// afterwards. Cancelling twice is answered like once.
func (s *Store) Cancel(ctx context.Context, id, by string) (task.CancelStatus, *task.Task, error) {
	for range cancelTries {
		t, err := s.Get(ctx, id)
		if errors.Is(err, task.ErrNotFound) {
			return task.CancelNotFound, nil, nil
		}
		if err != nil {
			return "", nil, fmt.Errorf("cancel: %w", err)
		}
		switch {
		case t.State == task.Cancelled:
			return task.CancelDone, t, nil
		case t.State.Terminal():
			return task.CancelTooLate, t, nil
		case !t.CancelRequestedAt.IsZero():
			return task.CancelAsked, t, nil
		}
		if err := s.tryCancel(ctx, t, mover(task.MoverOperator, by)); err != nil {
			return "", nil, fmt.Errorf("cancel: %w", err)
		}
		// Won or lost, what stands there now is the answer.
	}
	return "", nil, fmt.Errorf("cancel: task %s changed %d times meanwhile; try again", id, cancelTries)
}

func (s *Store) tryCancel(ctx context.Context, t *task.Task, by string) error {
	// The guard makes it a compare-and-set: a task that was claimed, finished or cancelled since it was read stays as it is.
	guard := bson.D{{Key: "_id", Value: t.ID}, {Key: "state", Value: string(t.State)}}
	m := move{from: t.State, to: task.Cancelled, reason: task.ReasonCancelled, by: by}
	set := bson.D{{Key: "finishedAt", Value: "$$NOW"}, {Key: "checkAt", Value: removed}}
	if t.State == task.Running {
		// Only this execution: the next one's worker would be told of a cancel that it cannot explain.
		guard = append(guard, bson.E{Key: "claim", Value: t.Claim}, bson.E{Key: "cancelRequestedAt", Value: nil})
		m.to = task.Running
		lease := earliest("$leaseUntil", later("$$NOW", task.CancelGrace.Milliseconds()))
		set = bson.D{{Key: "cancelRequestedAt", Value: "$$NOW"}, {Key: "leaseUntil", Value: lease}, {Key: "checkAt", Value: lease}}
	}
	update, err := m.pipeline(set)
	if err != nil {
		return err
	}
	_, err = s.tasks.UpdateOne(ctx, guard, update)
	return err
}
