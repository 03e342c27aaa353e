package mongostore

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// Heartbeat extends the leases of all executions in the request, and tells which of them are lost and which are to be cancelled.
// A lease never goes beyond the task's deadline or 30 s after a cancel request; the deadline itself is put off where the database's
// clock has jumped ahead (see [task.HeartbeatRequest]). An error means that nothing is known about any
// of them; those already extended stay so.
func (s *Store) Heartbeat(ctx context.Context, r task.HeartbeatRequest) (task.HeartbeatResult, error) {
	var result task.HeartbeatResult
	for part := range slices.Chunk(r.Owned, beatBatch) {
		update, err := beatUpdate(r, part)
		if err == nil {
			err = s.beat(ctx, part, update, &result)
		}
		if err != nil {
			return task.HeartbeatResult{}, fmt.Errorf("heartbeat: %w", err)
		}
	}
	return result, nil
}

// beatBatch bounds the executions of one update: each document is looked up among all of them.
const beatBatch = 250

// beatUpdate is no transition: it leaves state, seq, change and history alone.
//
// The filter knows the ids and the claims, but not which belong together, so the update looks: a worker that lost an execution and
// has claimed the task again, perhaps without having heard of it, beats for the old one, and must not extend the new one.
func beatUpdate(r task.HeartbeatRequest, owned []task.Owned) (pipeline, error) {
	pairs := make([]string, len(owned))
	for i, o := range owned {
		pairs[i] = o.ID + "|" + o.Claim
	}
	ours := func(field string, then any) bson.D { // a field as it is, unless the execution is one of these
		return bson.D{{Key: field, Value: bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$in", Value: bson.A{bson.D{{Key: "$concat", Value: bson.A{"$_id", "|", "$claim"}}}, literal(pairs)}}},
			then, "$" + field}}}}}
	}
	var all [][]byte
	if r.InTime {
		// Two leases: one for this beat, one until the next that can say so. Where the clock is right this changes nothing that
		// matters: such a deadline is as far ahead already, or nearly.
		deadline, err := bson.Marshal(bson.D{{Key: "$set", Value: ours("deadlineAt",
			latest("$deadlineAt", later("$$NOW", 2*r.Lease.Milliseconds())))}})
		if err != nil {
			return nil, err
		}
		all = append(all, deadline)
	}
	lease, err := bson.Marshal(bson.D{{Key: "$set", Value: ours("leaseUntil", earliest(
		later("$$NOW", r.Lease.Milliseconds()), "$deadlineAt", later("$cancelRequestedAt", task.CancelGrace.Milliseconds())))}})
	if err != nil {
		return nil, err
	}
	check, err := bson.Marshal(bson.D{{Key: "$set", Value: ours("checkAt", "$leaseUntil")}})
	if err != nil {
		return nil, err
	}
	return stages(append(all, lease, check)...), nil
}

func (s *Store) beat(ctx context.Context, owned []task.Owned, update pipeline, result *task.HeartbeatResult) error {
	ids := make([]string, len(owned))
	claims := make([]string, 0, 8)
	for i, o := range owned {
		ids[i] = o.ID
		if !slices.Contains(claims, o.Claim) {
			claims = append(claims, o.Claim)
		}
	}
	// The guard keeps a beat from extending a lease that belongs to another worker by now (claim: each token is one worker's) or
	// from reviving what has ended (state). Another execution of the same worker is kept apart by the update.
	if _, err := s.claims.UpdateMany(ctx, bson.D{
		{Key: "_id", Value: in(ids)},
		{Key: "claim", Value: in(claims)},
		{Key: "state", Value: string(task.Running)},
	}, update); err != nil {
		return fmt.Errorf("extend: %w", err)
	}
	held, err := s.executions(ctx, ids)
	if err != nil {
		return err
	}
	for _, o := range owned {
		switch e := held[o.ID]; {
		case e == nil || e.State != task.Running || e.Claim != o.Claim:
			result.Lost = append(result.Lost, o)
		case !e.CancelRequestedAt.IsZero():
			result.Cancelled = append(result.Cancelled, o)
		}
	}
	return nil
}

// executions reads under which claim and in which state tasks are now.
func (s *Store) executions(ctx context.Context, ids []string) (map[string]*task.Task, error) {
	cursor, err := s.tasks.Find(ctx, bson.D{{Key: "_id", Value: in(ids)}}, options.Find().
		SetProjection(bson.D{{Key: "state", Value: 1}, {Key: "claim", Value: 1}, {Key: "cancelRequestedAt", Value: 1}}).
		SetBatchSize(int32(len(ids)+1)))
	if err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	found, err := decodeAll(ctx, cursor)
	if err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	held := make(map[string]*task.Task, len(found))
	for _, t := range found {
		held[t.ID] = t
	}
	return held, nil
}
