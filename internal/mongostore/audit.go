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

// These reads serve an audit: tasks with their whole kept history, and what must agree with them. What they carry may be damaged, so
// none of them relies on fields that a damaged task may lack, and together they meet every task. Payloads, results and progress stay
// behind.

var forAudit = bson.D{{Key: "payload", Value: 0}, {Key: "payloadRaw", Value: 0}, {Key: "result", Value: 0}, {Key: "progress", Value: 0}}

const (
	auditBatch           = 200 // tasks handed over at once; each may have a history of 100 changes
	uniqueKeysCollection = "unique_keys"
)

// EachUnfinished hands tasks that no window of [Store.PendingBetween] and [Store.EndedBetween] holds to visit, in batches: what waits
// and what runs, and whatever lacks the time by which it would be found. It looks at all tasks once.
func (s *Store) EachUnfinished(ctx context.Context, visit func([]*task.Task) error) error {
	return s.eachAudited(ctx, "read unfinished tasks", s.bulkTasks, bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "finishedAt", Value: nil}, {Key: "state", Value: bson.D{{Key: "$ne", Value: string(task.Pending)}}}},
		bson.D{{Key: "scheduledAt", Value: nil}, {Key: "state", Value: string(task.Pending)}},
	}}}, visit)
}

// eachAudited hands what a filter finds to visit, in batches.
func (s *Store) eachAudited(ctx context.Context, what string, of *mongo.Collection, filter bson.D, visit func([]*task.Task) error) error {
	cursor, err := of.Find(ctx, filter, options.Find().SetProjection(forAudit).SetBatchSize(auditBatch))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return eachBatch(ctx, what, cursor, decodeTask, visit)
}

// PendingBetween returns pending tasks with from <= scheduledAt < to: at most limit. A zero time leaves its side open.
func (s *Store) PendingBetween(ctx context.Context, from, to time.Time, limit int) ([]*task.Task, error) {
	found, err := s.auditing(ctx, s.bulkTasks, pendingWithin(from, to), options.Find().SetSort(ascending("scheduledAt")).SetLimit(int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("read pending tasks: %w", err)
	}
	return found, nil
}

// EachPendingBetween hands all of them to visit, in batches: for windows that hold too many and cannot be cut further.
func (s *Store) EachPendingBetween(ctx context.Context, from, to time.Time, visit func([]*task.Task) error) error {
	return s.eachAudited(ctx, "read pending tasks", s.bulkTasks, pendingWithin(from, to), visit)
}

func pendingWithin(from, to time.Time) bson.D {
	return bson.D{{Key: "state", Value: string(task.Pending)}, {Key: "scheduledAt", Value: within(from, to)}}
}

// EndedBetween returns tasks with from <= finishedAt < to, whatever their state: at most limit. A zero time leaves its side open.
func (s *Store) EndedBetween(ctx context.Context, from, to time.Time, limit int) ([]*task.Task, error) {
	found, err := s.auditing(ctx, s.bulkTasks, bson.D{{Key: "finishedAt", Value: within(from, to)}},
		options.Find().SetSort(ascending("finishedAt")).SetLimit(int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("read ended tasks: %w", err)
	}
	return found, nil
}

// EachEndedBetween hands all of them to visit, in batches.
func (s *Store) EachEndedBetween(ctx context.Context, from, to time.Time, visit func([]*task.Task) error) error {
	return s.eachAudited(ctx, "read ended tasks", s.bulkTasks, bson.D{{Key: "finishedAt", Value: within(from, to)}}, visit)
}

// EachArchivedSince hands archived tasks to visit that ended at that time or later, in batches; the zero time: all, those without such
// a time too.
func (s *Store) EachArchivedSince(ctx context.Context, from time.Time, visit func([]*task.Task) error) error {
	filter := bson.D{}
	if !from.IsZero() {
		filter = bson.D{{Key: "finishedAt", Value: within(from, time.Time{})}}
	}
	return s.eachAudited(ctx, "read the archive", s.archive, filter, visit)
}

// ByIDs returns those of the tasks that exist, archived ones included, in no order.
func (s *Store) ByIDs(ctx context.Context, ids []string) ([]*task.Task, error) {
	var found []*task.Task
	// In this order: the archiver copies before it deletes, so a task on its way is found.
	for _, from := range []*mongo.Collection{s.tasks, s.archive} {
		if len(ids) == 0 {
			break
		}
		some, err := s.auditing(ctx, from, bson.D{{Key: "_id", Value: in(ids)}}, options.Find())
		if err != nil {
			return nil, fmt.Errorf("read tasks by id: %w", err)
		}
		there := make(map[string]bool, len(some))
		for _, t := range some {
			there[t.ID] = true
		}
		var missing []string
		for _, id := range ids {
			if !there[id] {
				missing = append(missing, id)
			}
		}
		found, ids = append(found, some...), missing
	}
	return found, nil
}

func (s *Store) auditing(ctx context.Context, from *mongo.Collection, filter bson.D, opts *options.FindOptionsBuilder) ([]*task.Task, error) {
	cursor, err := from.Find(ctx, filter, opts.SetProjection(forAudit).SetBatchSize(maxBatch))
	if err != nil {
		return nil, err
	}
	return decodeAll(ctx, cursor)
}

// DeadLettersOf returns for which of the tasks there is a dead letter.
func (s *Store) DeadLettersOf(ctx context.Context, ids []string) (map[string]bool, error) {
	cursor, err := s.bulkDB.Collection(deadLettersCollection).Find(ctx, bson.D{{Key: "_id", Value: in(ids)}},
		options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, fmt.Errorf("look up dead letters: %w", err)
	}
	var docs []deadDocument
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, fmt.Errorf("look up dead letters: %w", err)
	}
	there := make(map[string]bool, len(docs))
	for _, d := range docs {
		there[d.ID] = true
	}
	return there, nil
}

// EachDeadLetter hands all dead letters to visit, in batches, with id, type, reason and time only.
func (s *Store) EachDeadLetter(ctx context.Context, visit func([]task.DeadTask) error) error {
	cursor, err := s.bulkDB.Collection(deadLettersCollection).Find(ctx, bson.D{}, options.Find().SetBatchSize(maxBatch).
		SetProjection(bson.D{{Key: "taskType", Value: 1}, {Key: "reason", Value: 1}, {Key: "at", Value: 1}}))
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	return eachBatch(ctx, "read dead letters", cursor, func(raw bson.Raw) (task.DeadTask, error) {
		var d deadDocument
		err := bson.Unmarshal(raw, &d)
		return task.DeadTask{ID: d.ID, Type: d.Type, Reason: task.Reason(d.Reason), At: utc(d.At)}, err
	}, visit)
}

// UniqueScope returns the scope under which a unique key of a type is reserved; empty when nothing reserves it.
func (s *Store) UniqueScope(ctx context.Context, taskType, key string) (string, error) {
	var d struct {
		Scope string `bson:"scope"`
	}
	err := s.bulkDB.Collection(uniqueKeysCollection).FindOne(ctx, bson.D{{Key: "_id", Value: uniqueKeyID(taskType, key)}}).Decode(&d)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return "", fmt.Errorf("read unique key: %w", err)
	}
	return d.Scope, nil
}

// LockUntil returns until when a lock is held; the zero time when nobody ever held it.
func (s *Store) LockUntil(ctx context.Context, name string) (time.Time, error) {
	var d lockDocument
	err := s.bulkDB.Collection(locksCollection).FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&d)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return time.Time{}, fmt.Errorf("read lock %s: %w", name, err)
	}
	return utc(d.Until), nil
}
