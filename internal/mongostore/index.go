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

// index is one index and the query it serves. Those on tasks are partial: a finished task stands in done alone, so what is
// finished costs the others nothing.
type index struct {
	collection string
	name       string
	keys       bson.D
	partial    bson.D // filter of the documents that stand in it; nil: all
	ttl        bool   // documents are removed once the date in the key has passed
}

var pendingOnly = bson.D{{Key: "state", Value: string(task.Pending)}}

func ascending(fields ...string) bson.D {
	keys := make(bson.D, len(fields))
	for i, f := range fields {
		keys[i] = bson.E{Key: f, Value: 1}
	}
	return keys
}

func has(field string) bson.D {
	return bson.D{{Key: field, Value: bson.D{{Key: "$exists", Value: true}}}}
}

var indexes = []index{
	// Candidates of one type, channel and priority in a window of time. state stands first although the index is partial: some
	// planners take an index only by its first field.
	{TasksCollection, "claim", ascending("state", "taskType", "channel", "priority", "scheduledAt", "_id"), pendingOnly, false},
	// What falls due in a window of time, whatever its type.
	{TasksCollection, "due", ascending("scheduledAt"), pendingOnly, false},
	// The sweep: leases (running), expiry (pending), the next look (waiting).
	{TasksCollection, "check", ascending("checkAt"), has("checkAt"), false},
	// Who waits for this task or gate.
	{TasksCollection, "parents", ascending("waitingOn"), bson.D{{Key: "state", Value: string(task.Waiting)}}, false},
	// Archiving, and rebuilding events after a gap.
	{TasksCollection, "done", ascending("finishedAt"), has("finishedAt"), false},
	// Fields that few tasks have.
	{TasksCollection, "workflow", ascending("workflowId"), has("workflowId"), false},
	{TasksCollection, "bizkey", ascending("bizKey"), has("bizKey"), false},
	{TasksCollection, "rerun", ascending("rerunOf"), has("rerunOf"), false},
	{TasksCollection, "concurrency", ascending("concurrencyKey"), has("concurrencyKey"), false},

	// Deleting from the archive, and its export.
	{ArchiveCollection, "done", ascending("finishedAt"), nil, false},

	{uniqueKeysCollection, "until", ascending("until"), nil, true},
	{servicesCollection, "until", ascending("until"), nil, true},
	{onceCollection, "until", ascending("until"), nil, true},
	// Schedules whose next slot is due.
	{schedulesCollection, "next", ascending("nextAt"), has("nextAt"), false},
}

// withoutIndex are the collections that are read by _id alone. They are made at the start like the others, so that no collection
// comes into being by the first write to it, in the middle of the work.
var withoutIndex = []string{workersCollection, locksCollection, cursorsCollection, deadLettersCollection}

const namespaceExists = 48

// EnsureIndexes creates what is missing, collections and indexes. It is safe to call from every process at every start.
func (s *Store) EnsureIndexes(ctx context.Context) error {
	for _, name := range withoutIndex {
		var refused mongo.CommandError
		if err := s.bulkDB.CreateCollection(ctx, name); err != nil && !(errors.As(err, &refused) && refused.Code == namespaceExists) {
			return fmt.Errorf("create collection %s: %w", name, err)
		}
	}
	byCollection := make(map[string][]mongo.IndexModel)
	for _, ix := range indexes {
		opts := options.Index().SetName(ix.name)
		if ix.partial != nil {
			opts.SetPartialFilterExpression(ix.partial)
		}
		if ix.ttl {
			opts.SetExpireAfterSeconds(0)
		}
		byCollection[ix.collection] = append(byCollection[ix.collection], mongo.IndexModel{Keys: ix.keys, Options: opts})
	}
	for collection, models := range byCollection {
		if _, err := s.bulkDB.Collection(collection).Indexes().CreateMany(ctx, models); err != nil {
			return fmt.Errorf("create indexes of %s: %w", collection, err)
		}
	}
	return nil
}
