package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// uniqueKey reserves a key of a type for a task. Its _id is the unique index, so two tasks can never both be the holder; and nothing
// has to be released when the holder ends, because whoever wants the key next looks at the holder. So no crash leaves a key stuck.
type uniqueKey struct {
	ID     string    `bson:"_id"` // <type>/<key>
	TaskID string    `bson:"taskId"`
	Scope  string    `bson:"scope"`
	Until  time.Time `bson:"until,omitempty"` // of scope duration; the server deletes the document some time after it
	At     int64     `bson:"at"`              // when the holder was submitted, in nanoseconds since 1970
	Since  time.Time `bson:"since"`           // when the first of the submissions was stored that replaced each other up to this one
}

// uniqueKeyID is the _id under which a key of a type is reserved.
func uniqueKeyID(taskType, key string) string { return taskType + "/" + key }

// errHeld ends a transaction that changed nothing because the key is held.
var errHeld = errors.New("the unique key is held")

// insertUnique stores a task that wants a unique key, in a transaction of its own. On an error it may be stored or not; doing it again is
// right.
func (s *Store) insertUnique(ctx context.Context, t *task.Task) (status task.InsertStatus, err error) {
	if !s.features.Transactions {
		return task.NoTransactions, nil
	}
	session, err := s.bulk.StartSession()
	if err != nil {
		return 0, fmt.Errorf("unique key: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	// The driver runs it again when another transaction was in the way, and commits again when the answer was lost.
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		status, err = s.InsertUnique(ctx, s.bulkDB, t)
		if err == nil && status != task.Inserted {
			err = errHeld // there is nothing to commit
		}
		return nil, err
	})
	if err != nil && !errors.Is(err, errHeld) {
		return 0, fmt.Errorf("unique key: %w", err)
	}
	return status, nil
}

// InsertUnique stores a task that wants a unique key inside the transaction of ctx, with the collections of db, unless another task
// holds the key; then it answers [task.Held] and says which in its Unique. It is in order to call it twice in one transaction.
//
// All who want the key write its document, so of two transactions at a time one fails and is run again by the driver: neither can take
// a key over from a holder that the other one has just replaced.
func (s *Store) InsertUnique(ctx context.Context, db *mongo.Database, t *task.Task) (task.InsertStatus, error) {
	status := []task.InsertStatus{0}
	// The own id first: a repeat, or our own insert whose answer was lost, must not be held up by the key that it holds itself.
	if missing, err := s.compare(ctx, db.Collection(TasksCollection), []*task.Task{t}, []int{0}, status); err != nil || len(missing) == 0 {
		return status[0], err
	}
	now, bound, err := s.Now()
	if err != nil {
		return 0, err
	}
	keys := db.Collection(uniqueKeysCollection)
	var held uniqueKey
	err = keys.FindOne(ctx, bson.D{{Key: "_id", Value: uniqueKeyID(t.Type, t.UniqueKey)}}).Decode(&held)
	known := err == nil
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return 0, fmt.Errorf("read unique key: %w", err)
	}
	next := uniqueKey{ID: uniqueKeyID(t.Type, t.UniqueKey), TaskID: t.ID, Scope: string(t.Unique.Scope), At: t.Unique.At.UnixNano(), Since: now}
	if t.Unique.Scope == task.ScopeDuration {
		next.Until = now.Add(t.Unique.For)
	}
	insert := *t // as it was: the transaction may be run again
	var replaced task.State
	if known {
		var free bool
		if free, replaced, err = s.takeOver(ctx, db, &insert, held, &next, now); err != nil {
			return 0, err
		}
		if !free {
			return task.Held, nil
		}
	}
	doc, err := encodeNew(&insert, now.Add(-bound))
	if err != nil {
		return 0, err
	}
	if _, err := db.Collection(TasksCollection).InsertOne(ctx, doc); err != nil {
		return 0, fmt.Errorf("insert: %w", err)
	}
	if !known {
		_, err = keys.InsertOne(ctx, next)
	} else {
		// The guard is the holder that was judged.
		var changed *mongo.UpdateResult
		changed, err = keys.ReplaceOne(ctx, bson.D{{Key: "_id", Value: held.ID}, {Key: "taskId", Value: held.TaskID}}, next)
		if err == nil && changed.MatchedCount == 0 {
			err = again("it changed hands")
		}
	}
	if mongo.IsDuplicateKeyError(err) { // reserved since it was looked for
		err = again(err.Error())
	}
	if err != nil {
		return 0, fmt.Errorf("reserve unique key: %w", err)
	}
	if replaced != "" {
		if err := s.replace(ctx, db, held.TaskID, replaced, t.ID); err != nil {
			return 0, fmt.Errorf("replace the holder of a unique key: %w", err)
		}
	}
	*t = insert
	return task.Inserted, nil
}

// again has the driver run a transaction once more, on what stands there now.
func again(why string) error {
	return mongo.CommandError{Code: 112, Name: "WriteConflict", Message: why, Labels: []string{"TransientTransactionError"}}
}

// takeOver decides whether a task may have a key that another one reserved. It sets what is kept of the former reservation in next, and
// returns the state of a holder that is to be replaced; empty: none is.
func (s *Store) takeOver(ctx context.Context, db *mongo.Database, t *task.Task, held uniqueKey, next *uniqueKey, now time.Time) (free bool, replaced task.State, err error) {
	if !held.Until.IsZero() && !held.Until.After(now) {
		return true, "", nil
	}
	u := t.Unique
	u.Holder, u.Newer = held.TaskID, false
	var holder struct {
		State task.State `bson:"state"`
	}
	err = db.Collection(TasksCollection).FindOne(ctx, bson.D{{Key: "_id", Value: held.TaskID}},
		options.FindOne().SetProjection(bson.D{{Key: "state", Value: 1}})).Decode(&holder)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return false, "", fmt.Errorf("read the holder of a unique key: %w", err)
	}
	ended := err != nil || holder.State.Terminal() // an ended one may have been archived or removed
	switch {
	case ended && held.TaskID == t.RerunOf:
		// The holder itself is run once more, under the terms that it had.
		next.Scope, next.Until, next.Since = held.Scope, held.Until, held.Since
		return true, "", nil
	case ended:
		return held.Scope == string(task.ScopeActive), "", nil
	case holder.State == task.Running, u.OnConflict != task.ConflictReplace && u.OnConflict != task.ConflictDebounce:
		return false, "", nil
	case next.At < held.At:
		u.Newer = true
		return false, "", nil
	}
	if u.OnConflict == task.ConflictDebounce {
		next.Since = held.Since
		if latest := held.Since.Add(u.MaxWait); t.ScheduledAt.After(latest) {
			t.ScheduledAt = latest.UTC().Truncate(time.Millisecond)
		}
	}
	return true, holder.State, nil
}

// replace ends the former holder. The guard keeps one that a worker has claimed meanwhile: it runs, and the transaction begins anew and
// finds that out. It is the transaction's last write, because a claim of the same task waits until it is over.
func (s *Store) replace(ctx context.Context, db *mongo.Database, id string, from task.State, by string) error {
	m := move{from: from, to: task.Cancelled, reason: task.ReasonReplaced, by: mover(task.MoverSubmitter, by)}
	update, err := m.pipeline(bson.D{{Key: "finishedAt", Value: "$$NOW"}, {Key: "checkAt", Value: removed}})
	if err != nil {
		return err
	}
	result, err := db.Collection(TasksCollection).UpdateOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "state", Value: string(from)}}, update)
	if err == nil && result.ModifiedCount == 0 {
		err = again("it changed")
	}
	return err
}
