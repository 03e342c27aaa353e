package mongostore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

var ended = []string{string(task.Success), string(task.Failed), string(task.Cancelled)}

// OldestEnded returns when the task ended that ended first of those that are not archived; false: none has. It may be slow where the
// server does not read an index in order, so a caller asks once and goes on from there.
func (s *Store) OldestEnded(ctx context.Context) (time.Time, bool, error) {
	return oldest(ctx, s.bulkTasks)
}

// OldestArchived is OldestEnded for the archive.
func (s *Store) OldestArchived(ctx context.Context) (time.Time, bool, error) {
	return oldest(ctx, s.archive)
}

func oldest(ctx context.Context, in *mongo.Collection) (time.Time, bool, error) {
	var d struct {
		At time.Time `bson:"finishedAt"`
	}
	err := in.FindOne(ctx, bson.D{{Key: "finishedAt", Value: bson.D{{Key: "$gte", Value: longAgo}}}},
		options.FindOne().SetSort(ascending("finishedAt")).SetProjection(bson.D{{Key: "finishedAt", Value: 1}})).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("look for the oldest ended task: %w", err)
	}
	return d.At.UTC(), true, nil
}

// EndedWithin returns the ids of tasks with from <= finishedAt < to by their state, at most limit of all together, and how many there
// were up to that.
func (s *Store) EndedWithin(ctx context.Context, from, to time.Time, limit int) (ids map[task.State][]string, n int, err error) {
	cursor, err := s.bulkTasks.Find(ctx, bson.D{{Key: "finishedAt", Value: within(from, to)}},
		options.Find().SetProjection(bson.D{{Key: "state", Value: 1}}).SetLimit(int64(limit)).SetBatchSize(int32(limit)))
	if err != nil {
		return nil, 0, fmt.Errorf("read ended tasks: %w", err)
	}
	var found []struct {
		ID    string     `bson:"_id"`
		State task.State `bson:"state"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return nil, 0, fmt.Errorf("read ended tasks: %w", err)
	}
	ids = make(map[task.State][]string)
	for _, f := range found {
		ids[f.State] = append(ids[f.State], f.ID)
	}
	return ids, len(found), nil
}

// Archive moves ended tasks into the archive and returns how many it moved. They are copied before they are deleted, so one that is
// looked for is found at any moment, and a move that was broken off is completed by the next one. Those that have not ended stay.
func (s *Store) Archive(ctx context.Context, ids []string) (moved int, err error) {
	cursor, err := s.bulkTasks.Find(ctx, bson.D{{Key: "_id", Value: in(ids)}, {Key: "state", Value: in(ended)}}, options.Find().SetBatchSize(50))
	if err != nil {
		return 0, fmt.Errorf("archive: read: %w", err)
	}
	defer cursor.Close(context.WithoutCancel(ctx))
	var batch []any
	size := 0
	flush := func() error {
		n, err := s.archiveBatch(ctx, batch)
		moved += n
		batch, size = nil, 0
		return err
	}
	for cursor.Next(ctx) {
		batch, size = append(batch, append(bson.Raw(nil), cursor.Current...)), size+len(cursor.Current)
		if size >= maxBatchBytes || len(batch) == maxBatch {
			if err := flush(); err != nil {
				return moved, fmt.Errorf("archive: %w", err)
			}
		}
	}
	if err := cursor.Err(); err != nil {
		return moved, fmt.Errorf("archive: read: %w", err)
	}
	if err := flush(); err != nil {
		return moved, fmt.Errorf("archive: %w", err)
	}
	return moved, nil
}

func (s *Store) archiveBatch(ctx context.Context, docs []any) (int, error) {
	if len(docs) == 0 {
		return 0, nil
	}
	_, err := s.archive.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	var refused mongo.BulkWriteException
	if err != nil && (!errors.As(err, &refused) || refused.WriteConcernError != nil) {
		return 0, fmt.Errorf("copy: %w", err)
	}
	failed := make(map[string]error, len(refused.WriteErrors))
	for _, e := range refused.WriteErrors {
		failed[idOf(docs[e.Index])] = e
	}
	if err := s.forgiveCopied(ctx, failed); err != nil {
		return 0, fmt.Errorf("copy: %w", err)
	}
	var ids []string
	var keys []mongo.WriteModel
	for _, d := range docs {
		raw := d.(bson.Raw)
		id := idOf(d)
		if err := failed[id]; err != nil { // it must not hold up the others
			s.log.Error("a task cannot be archived; it stays where it is", "task_id", id, "err", err)
			continue
		}
		ids = append(ids, id)
		if key, ok := raw.Lookup("uniqueKey").StringValueOK(); ok && key != "" {
			// Only what this task still holds, and only while it holds it because it is there: the other scopes outlive it.
			keys = append(keys, mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: uniqueKeyID(raw.Lookup("taskType").StringValue(), key)},
				{Key: "taskId", Value: id}, {Key: "scope", Value: string(task.ScopeActive)}}))
		}
	}
	if len(keys) > 0 {
		if _, err := s.bulkDB.Collection(uniqueKeysCollection).BulkWrite(ctx, keys, options.BulkWrite().SetOrdered(false)); err != nil {
			return 0, fmt.Errorf("free unique keys: %w", err)
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	// The guard keeps what has not ended, whatever was read.
	deleted, err := s.bulkTasks.DeleteMany(ctx, bson.D{{Key: "_id", Value: in(ids)}, {Key: "state", Value: in(ended)}})
	if err != nil {
		return 0, fmt.Errorf("delete: %w", err)
	}
	return int(deleted.DeletedCount), nil
}

// forgiveCopied takes those out of failed that are in the archive: they were copied by a move that was broken off, or by another
// archiver. What has ended never changes again, so the copies are the same.
func (s *Store) forgiveCopied(ctx context.Context, failed map[string]error) error {
	if len(failed) == 0 {
		return nil
	}
	cursor, err := s.archive.Find(ctx, bson.D{{Key: "_id", Value: in(slices.Collect(maps.Keys(failed)))}},
		options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetBatchSize(maxBatch+1))
	if err != nil {
		return err
	}
	var there []struct {
		ID string `bson:"_id"`
	}
	if err := cursor.All(ctx, &there); err != nil {
		return err
	}
	for _, d := range there {
		delete(failed, d.ID)
	}
	return nil
}

func idOf(doc any) string { return doc.(bson.Raw).Lookup("_id").StringValue() }

// PurgeArchive deletes archived tasks with from <= finishedAt < to for good, and their dead letters before them. It returns how many
// tasks.
func (s *Store) PurgeArchive(ctx context.Context, from, to time.Time) (int, error) {
	cursor, err := s.archive.Find(ctx, bson.D{{Key: "finishedAt", Value: within(from, to)}},
		options.Find().SetProjection(bson.D{{Key: "state", Value: 1}}).SetBatchSize(maxBatch))
	if err != nil {
		return 0, fmt.Errorf("purge the archive: %w", err)
	}
	failed := func(raw bson.Raw) (string, error) {
		if task.State(raw.Lookup("state").StringValue()) != task.Failed {
			return "", nil
		}
		return raw.Lookup("_id").StringValue(), nil
	}
	err = eachBatch(ctx, "purge the archive", cursor, failed, func(ids []string) error {
		_, err := s.bulkDB.Collection(deadLettersCollection).DeleteMany(ctx, bson.D{{Key: "_id", Value: in(ids)}})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge the archive: dead letters: %w", err)
	}
	deleted, err := s.archive.DeleteMany(ctx, bson.D{{Key: "finishedAt", Value: within(from, to)}})
	if err != nil {
		return 0, fmt.Errorf("purge the archive: %w", err)
	}
	return int(deleted.DeletedCount), nil
}

// EachArchived hands archived tasks with from <= finishedAt < to to visit, whole, in batches, in no order. A zero time leaves its side
// open; an empty type stands for all.
func (s *Store) EachArchived(ctx context.Context, taskType string, from, to time.Time, visit func([]*task.Task) error) error {
	filter := bson.D{{Key: "finishedAt", Value: within(from, to)}}
	if taskType != "" {
		filter = append(filter, bson.E{Key: "taskType", Value: taskType})
	}
	cursor, err := s.archive.Find(ctx, filter, options.Find().SetBatchSize(auditBatch))
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	return eachBatch(ctx, "read the archive", cursor, decodeTask, visit)
}
