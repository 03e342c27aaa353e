package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// forReaper leaves out what a sweep does not decide by.
var forReaper = bson.D{{Key: "payload", Value: 0}, {Key: "payloadRaw", Value: 0}, {Key: "result", Value: 0}, {Key: "history", Value: 0},
	{Key: "change", Value: 0}}

// SweepCheck returns tasks of any state whose checkAt is not later than due, the earliest first: at most limit. They come
// without payload, result and history.
func (s *Store) SweepCheck(ctx context.Context, due time.Time, limit int) ([]*task.Task, error) {
	cursor, err := s.tasks.Find(ctx, bson.D{{Key: "checkAt", Value: bson.D{{Key: "$lte", Value: due}}}}, options.Find().
		SetSort(ascending("checkAt")).SetLimit(int64(limit)).SetProjection(forReaper).SetBatchSize(int32(min(limit, maxBatch))))
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	found, err := decodeAll(ctx, cursor)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	return found, nil
}

// ending is what the reaper makes of an execution.
type ending struct {
	claim  string
	lease  time.Time // leaseUntil as read
	to     task.State
	reason task.Reason
	delay  time.Duration // before it may start again
	error  string
	by     string
}

// Revive ends the executions of running tasks as they were read and returns the ids of those that had not changed since. Each
// becomes pending again (reason timeout when its deadline has passed, else lease_expired), failed when its losses are used up
// (worker_lost), or cancelled where that was asked for. It is for the caller to know that the leases are over.
func (s *Store) Revive(ctx context.Context, read []*task.Task, by string) ([]string, error) {
	groups := make(map[ending][]string)
	for _, t := range read {
		if t.State != task.Running {
			return nil, fmt.Errorf("revive: task %s was read as %s, not running", t.ID, t.State)
		}
		e := endingOf(t, mover(task.MoverReaper, by))
		groups[e] = append(groups[e], t.ID)
	}
	var done []string
	for e, ids := range groups {
		update, err := e.update()
		if err != nil {
			return done, fmt.Errorf("revive: %w", err)
		}
		// The guard leaves alone what its worker reported (state), what was revived by another reaper and taken by another worker
		// since (claim), and whose lease its worker extended in the last moment (leaseUntil).
		changed, err := s.updateRead(ctx, ids, bson.D{
			{Key: "state", Value: string(task.Running)}, {Key: "claim", Value: e.claim}, {Key: "leaseUntil", Value: e.lease},
		}, update, e.by)
		done = append(done, changed...)
		if err != nil {
			return done, fmt.Errorf("revive: %w", err)
		}
	}
	return done, nil
}

func endingOf(t *task.Task, by string) ending {
	e := ending{claim: t.Claim, lease: t.LeaseUntil, to: task.Pending, reason: task.ReasonLeaseExpired, by: by}
	cause := task.ReasonLeaseExpired
	message := fmt.Sprintf("worker %s stopped extending the lease", t.WorkerID)
	if c := t.CancelRequestedAt; !c.IsZero() && !t.LeaseUntil.Before(c.Add(task.CancelGrace)) { // extended as far as a cancel lets it
		message = fmt.Sprintf("the handler on worker %s did not stop within %v after the cancel", t.WorkerID, task.CancelGrace)
	}
	if !t.DeadlineAt.IsZero() && !t.LeaseUntil.Before(t.DeadlineAt) { // no lease goes beyond the deadline
		e.reason, cause = task.ReasonTimeout, task.ReasonTimeout
		message = fmt.Sprintf("worker %s did not end the attempt by its deadline", t.WorkerID)
	}
	if t.Losses+1 > t.MaxLosses {
		e.to, e.reason = task.Failed, task.ReasonWorkerLost
	} else {
		e.delay = task.LossDelay(t.ID, t.Losses+1)
	}
	e.error = errorText(&task.Error{Message: message, Cause: cause, Attempt: t.Attempts})
	return e
}

func (e ending) update() (pipeline, error) {
	m := move{from: task.Running, to: e.to, reason: e.reason, by: e.by, unlessCancelled: true, withError: true}
	set := append(afterRunning(e.to), bson.E{Key: "losses", Value: add("$losses", int32(1))},
		bson.E{Key: "lastError", Value: literal(e.error)}, bson.E{Key: "errorCode", Value: removed})
	switch {
	case e.to != task.Pending:
	case e.delay > 0:
		set = append(set, bson.E{Key: "scheduledAt", Value: ifCancelAsked("$scheduledAt", later("$$NOW", e.delay.Milliseconds()))})
	default:
		set = append(set, dueAgain)
	}
	return m.pipeline(set)
}

// Expire fails pending and waiting tasks as they were read, because expiresAt has passed, and returns the ids of those that had
// not changed since. It is for the caller to know that the time is over.
func (s *Store) Expire(ctx context.Context, read []*task.Task, by string) ([]string, error) {
	type likeness struct {
		state task.State
		until time.Time
	}
	groups := make(map[likeness][]string)
	for _, t := range read {
		if t.ExpiresAt.IsZero() || t.State != task.Pending && t.State != task.Waiting {
			return nil, fmt.Errorf("expire: task %s is %s and expires at %v", t.ID, t.State, t.ExpiresAt)
		}
		l := likeness{t.State, t.ExpiresAt}
		groups[l] = append(groups[l], t.ID)
	}
	by = mover(task.MoverReaper, by)
	var done []string
	for l, ids := range groups {
		m := move{from: l.state, to: task.Failed, reason: task.ReasonExpired, by: by}
		update, err := m.pipeline(bson.D{{Key: "finishedAt", Value: "$$NOW"}, {Key: "checkAt", Value: removed}})
		if err != nil {
			return done, fmt.Errorf("expire: %w", err)
		}
		// The guard leaves alone what was claimed, cancelled or expired by another since (state).
		changed, err := s.updateRead(ctx, ids, bson.D{
			{Key: "state", Value: string(l.state)}, {Key: "expiresAt", Value: l.until},
		}, update, by)
		done = append(done, changed...)
		if err != nil {
			return done, fmt.Errorf("expire: %w", err)
		}
	}
	return done, nil
}

// updateRead applies one transition to tasks that still are as they were read, and returns the ids of those it changed. by names
// who makes it, which tells the own writes from those of another reaper when not all matched.
func (s *Store) updateRead(ctx context.Context, ids []string, guard bson.D, update pipeline, by string) ([]string, error) {
	var changed []string
	for len(ids) > 0 {
		part := ids[:min(len(ids), maxBatch)]
		ids = ids[len(part):]
		result, err := s.tasks.UpdateMany(ctx, append(bson.D{{Key: "_id", Value: in(part)}}, guard...), update)
		if err != nil {
			return changed, err
		}
		if result.MatchedCount == int64(len(part)) {
			changed = append(changed, part...)
			continue
		}
		if result.MatchedCount == 0 {
			continue
		}
		mine, err := s.changedBy(ctx, part, by)
		if err != nil {
			return changed, err
		}
		changed = append(changed, mine...)
	}
	return changed, nil
}

// changedBy returns those of the tasks whose newest change that did not go on to be claimed was made by the given mover. It is for
// counting and logs: a task that was taken and ended within the same moment is missed.
func (s *Store) changedBy(ctx context.Context, ids []string, by string) ([]string, error) {
	cursor, err := s.tasks.Find(ctx, bson.D{{Key: "_id", Value: in(ids)}}, options.Find().
		SetProjection(bson.D{{Key: "change", Value: 1}}).SetBatchSize(int32(len(ids)+1)))
	if err != nil {
		return nil, fmt.Errorf("look up changes: %w", err)
	}
	found, err := decodeAll(ctx, cursor)
	if err != nil {
		return nil, fmt.Errorf("look up changes: %w", err)
	}
	var mine []string
	for _, t := range found {
		if c, err := task.ParseChange(t.Change); err == nil && c.By == by {
			mine = append(mine, t.ID)
		}
	}
	return mine, nil
}
