package mongostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

const duplicateKey = 11000

// Insert stores new tasks and tells for each what became of it. It sets their State, CreatedAt, ScheduledAt (when zero), CheckAt,
// Seq, Change and History. Any number may be given; they travel in commands of bounded size.
//
// An id that is stored already is no error: the status says whether it is the same submission. On an error the tasks whose status
// is zero may or may not be stored, and inserting all of them again is right: those stored answer [task.Duplicate].
func (s *Store) Insert(ctx context.Context, tasks []*task.Task) ([]task.InsertStatus, error) {
	status, err := s.findArchived(ctx, tasks)
	if err != nil {
		return status, fmt.Errorf("insert: %w", err)
	}
	now, bound, err := s.Now()
	if err != nil {
		return status, fmt.Errorf("insert: %w", err)
	}
	b := insertBatch{store: s, tasks: tasks, status: status}
	var unique []int
	for i, t := range tasks {
		if status[i] != 0 {
			continue
		}
		if t.Unique != nil {
			unique = append(unique, i)
			continue
		}
		doc, err := encodeNew(t, now.Add(-bound))
		if err == nil {
			err = b.add(ctx, i, doc)
		}
		if err != nil {
			return status, fmt.Errorf("insert: %w", err)
		}
	}
	if err := b.flush(ctx); err != nil {
		return status, fmt.Errorf("insert: %w", err)
	}
	for _, i := range unique { // in their order: of two with one key the first gets it, or the last replaces it
		if status[i], err = s.insertUnique(ctx, tasks[i]); err != nil {
			return status, fmt.Errorf("insert: %w", err)
		}
	}
	return status, nil
}

// Prepare makes the documents of new tasks for a caller who inserts them into [TasksCollection] itself, inside a transaction of
// its own. It sets the same fields as Insert. A task with a fixed id that is in the archive has no document; its status says why. Nor has
// one with a unique key, which is for [Store.InsertUnique].
func (s *Store) Prepare(ctx context.Context, tasks []*task.Task) ([]bson.Raw, []task.InsertStatus, error) {
	status, err := s.findArchived(ctx, tasks)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare: %w", err)
	}
	now, bound, err := s.Now()
	if err != nil {
		return nil, nil, fmt.Errorf("prepare: %w", err)
	}
	docs := make([]bson.Raw, len(tasks))
	for i, t := range tasks {
		if status[i] == 0 && t.Unique == nil {
			if docs[i], err = encodeNew(t, now.Add(-bound)); err != nil {
				return nil, nil, fmt.Errorf("prepare: %w", err)
			}
		}
	}
	return docs, status, nil
}

func encodeNew(t *task.Task, now time.Time) ([]byte, error) {
	submit(t, now)
	return appendTask(make([]byte, 0, 1024+len(t.Payload)+2*len(t.Echo)), t)
}

// findArchived tells which tasks with a fixed id have ended so long ago that they were archived: the unique _id of the tasks
// collection no longer protects from a second one. A task moves there a retention after its end, never while it is inserted.
func (s *Store) findArchived(ctx context.Context, tasks []*task.Task) ([]task.InsertStatus, error) {
	status := make([]task.InsertStatus, len(tasks))
	var fixed []int
	for i, t := range tasks {
		if t.FixedID {
			fixed = append(fixed, i)
		}
	}
	for part := range slices.Chunk(fixed, maxBatch) {
		if _, err := s.compare(ctx, s.archive, tasks, part, status); err != nil {
			return status, err
		}
	}
	return status, nil
}

// compare reads the stored submissions of the tasks at the given places, sets their status, and returns the places not found.
func (s *Store) compare(ctx context.Context, from *mongo.Collection, tasks []*task.Task, places []int, status []task.InsertStatus) ([]int, error) {
	ids := make([]string, len(places))
	for i, at := range places {
		ids[i] = tasks[at].ID
	}
	cursor, err := from.Find(ctx, bson.D{{Key: "_id", Value: in(ids)}},
		options.Find().SetProjection(bson.D{{Key: "submitHash", Value: 1}}).SetBatchSize(maxBatch+1))
	if err != nil {
		return nil, fmt.Errorf("look up ids: %w", err)
	}
	var found []struct {
		ID   string `bson:"_id"`
		Hash string `bson:"submitHash"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return nil, fmt.Errorf("look up ids: %w", err)
	}
	hashes := make(map[string]string, len(found))
	for _, f := range found {
		hashes[f.ID] = f.Hash
	}
	var missing []int
	for _, at := range places {
		hash, ok := hashes[tasks[at].ID]
		switch {
		case !ok:
			missing = append(missing, at)
		case hash == tasks[at].SubmitHash:
			status[at] = task.Duplicate
		default:
			status[at] = task.Conflict
		}
	}
	return missing, nil
}

// insertBatch gathers documents until a command is full.
type insertBatch struct {
	store  *Store
	tasks  []*task.Task
	status []task.InsertStatus

	docs   []any
	places []int // of docs in tasks
	bytes  int
}

func (b *insertBatch) add(ctx context.Context, place int, doc []byte) error {
	if len(b.docs) == maxBatch || len(b.docs) > 0 && b.bytes+len(doc) > maxBatchBytes {
		if err := b.flush(ctx); err != nil {
			return err
		}
	}
	b.docs, b.places, b.bytes = append(b.docs, doc), append(b.places, place), b.bytes+len(doc)
	return nil
}

// flush writes one command. The unique _id is the guard: a task that is stored already stays as it is.
func (b *insertBatch) flush(ctx context.Context) error {
	if len(b.docs) == 0 {
		return nil
	}
	docs, places := b.docs, b.places
	b.docs, b.places, b.bytes = nil, nil, 0

	_, err := b.store.bulkTasks.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	var refused mongo.BulkWriteException
	if err != nil && (!errors.As(err, &refused) || refused.WriteConcernError != nil) {
		return err
	}
	failed := make(map[int]bool, len(refused.WriteErrors))
	var stored []int
	var other error
	for _, e := range refused.WriteErrors {
		failed[e.Index] = true
		if e.Code == duplicateKey {
			stored = append(stored, places[e.Index])
		} else {
			other = errors.Join(other, fmt.Errorf("task %s: %w", b.tasks[places[e.Index]].ID, e))
		}
	}
	for i, at := range places {
		if !failed[i] {
			b.status[at] = task.Inserted
		}
	}
	return errors.Join(b.store.resolveStored(ctx, b.tasks, stored, b.status), other)
}

// resolveStored tells a repeat from a conflict. A repeat may be our own: when a reply is lost the driver sends the insert again,
// and the second reply reports all its documents as stored already.
func (s *Store) resolveStored(ctx context.Context, tasks []*task.Task, places []int, status []task.InsertStatus) error {
	for _, from := range []*mongo.Collection{s.bulkTasks, s.archive} {
		if len(places) == 0 {
			return nil
		}
		var err error
		if places, err = s.compare(ctx, from, tasks, places, status); err != nil {
			return err
		}
	}
	if len(places) > 0 {
		return fmt.Errorf("id %s and %d more were refused as stored already, and then not found; insert again",
			tasks[places[0]].ID, len(places)-1)
	}
	return nil
}
