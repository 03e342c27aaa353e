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

// Claim takes ownership of those tasks of the request that are due, pending and wanted, and returns them in the order asked for,
// without their history. The others are simply missing: somebody else has them, or they are not due.
//
// The update stamps the claim token, the find returns what carries it. An error that wraps [task.ErrUnknownOutcome] means that
// tasks may be held under the token, now or in a moment: look with Resolve, never claim the same ids again under another token.
func (s *Store) Claim(ctx context.Context, r task.ClaimRequest) ([]*task.Task, error) {
	if len(r.IDs) == 0 {
		return nil, nil
	}
	if len(r.IDs) > maxBatch {
		return nil, fmt.Errorf("claim: %d ids, at most %d", len(r.IDs), maxBatch)
	}
	now, bound, err := s.Now()
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	update, err := claimUpdate(r)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	result, err := s.claims.UpdateMany(ctx, claimGuard(r.IDs, now, bound), update)
	if err != nil {
		return nil, fmt.Errorf("claim: %w: %w", task.ErrUnknownOutcome, err)
	}
	if result.ModifiedCount == 0 {
		return nil, nil
	}
	find := s.Resolve
	if int(result.ModifiedCount) == len(r.IDs) {
		find = s.findWon
	}
	tasks, err := find(ctx, r.Claim, r.IDs)
	if err != nil {
		return nil, fmt.Errorf("claim: %w: %w", task.ErrUnknownOutcome, err)
	}
	return tasks, nil
}

// claimGuard is checked again on each document before it is written, so of several claimers exactly one gets it (state). It keeps
// a task from starting early (scheduledAt, by the earliest the server's time can be), after its expiry (by the latest it can be),
// and after somebody cancelled it.
func claimGuard(ids []string, now time.Time, bound time.Duration) bson.D {
	return bson.D{
		{Key: "_id", Value: in(ids)},
		{Key: "state", Value: is(string(task.Pending))},
		{Key: "scheduledAt", Value: bson.D{{Key: "$lte", Value: now.Add(-bound)}}},
		{Key: "expiresAt", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$lte", Value: now.Add(bound + time.Millisecond)}}}}},
		{Key: "cancelRequestedAt", Value: is(nil)},
	}
}

func claimUpdate(r task.ClaimRequest) (pipeline, error) {
	deadline := later("$$NOW", add("$timeoutMs", task.TimeoutGrace.Milliseconds()))
	lease := earliest(later("$$NOW", r.Lease.Milliseconds()), deadline)
	m := move{from: task.Pending, to: task.Running, reason: task.ReasonClaimed, by: mover(task.MoverWorker, r.Worker)}
	return m.pipeline(bson.D{
		{Key: "claim", Value: literal(r.Claim)},
		{Key: "workerId", Value: literal(r.Worker)},
		{Key: "attempts", Value: add("$attempts", int32(1))},
		{Key: "startedAt", Value: "$$NOW"},
		{Key: "deadlineAt", Value: deadline},
		{Key: "leaseUntil", Value: lease},
		{Key: "checkAt", Value: lease},
	})
}

// forWorker leaves out what a handler does not need: the history of a task that was tried often is larger than the task.
var forWorker = bson.D{{Key: "history", Value: 0}, {Key: "change", Value: 0}, {Key: "submitHash", Value: 0}}

// Resolve returns the tasks of the given ids that run under the claim at this moment, in the order of the ids.
func (s *Store) Resolve(ctx context.Context, claim string, ids []string) ([]*task.Task, error) {
	filter := heldUnder(claim, ids)
	return s.findHeld(ctx, claim, ids, filter, options.Find().SetProjection(forWorker))
}

// findWon is Resolve right after a claim that won all of the ids. Each of them is looked at again, so that one which was revived
// meanwhile is not returned.
func (s *Store) findWon(ctx context.Context, claim string, ids []string) ([]*task.Task, error) {
	filter, projection := s.wonBy(claim, ids)
	opts := options.Find()
	if projection != nil {
		opts.SetProjection(projection)
	}
	return s.findHeld(ctx, claim, ids, filter, opts)
}

// wonBy asks for the ids alone where the server is SecantusDB: further conditions and a projection cost it several times the look-up.
func (s *Store) wonBy(claim string, ids []string) (filter, projection bson.D) {
	if s.secantus {
		return bson.D{{Key: "_id", Value: in(ids)}}, nil
	}
	return heldUnder(claim, ids), forWorker
}

func heldUnder(claim string, ids []string) bson.D {
	return bson.D{{Key: "_id", Value: in(ids)}, {Key: "claim", Value: is(claim)}, {Key: "state", Value: is(string(task.Running))}}
}

func (s *Store) findHeld(ctx context.Context, claim string, ids []string, filter bson.D, opts *options.FindOptionsBuilder) ([]*task.Task, error) {
	cursor, err := s.tasks.Find(ctx, filter, opts.SetBatchSize(int32(len(ids)+1)))
	if err != nil {
		return nil, fmt.Errorf("find by claim: %w", err)
	}
	found, err := decodeAll(ctx, cursor)
	if err != nil {
		return nil, fmt.Errorf("find by claim: %w", err)
	}
	byID := make(map[string]*task.Task, len(found))
	for _, t := range found {
		if t.Claim == claim && t.State == task.Running {
			t.History, t.SubmitHash = nil, ""
			byID[t.ID] = t
		}
	}
	ordered := found[:0]
	for _, id := range ids {
		if t := byID[id]; t != nil {
			ordered = append(ordered, t)
			delete(byID, id)
		}
	}
	return ordered, nil
}

func decodeAll(ctx context.Context, cursor *mongo.Cursor) ([]*task.Task, error) {
	defer cursor.Close(context.WithoutCancel(ctx))
	tasks := make([]*task.Task, 0, cursor.RemainingBatchLength())
	for cursor.Next(ctx) {
		t, err := decodeTask(cursor.Current)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, cursor.Err()
}
