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

const locksCollection = "locks"

// longAgo is the until of a lock that nobody holds.
var longAgo = time.UnixMilli(0).UTC()

// lockDocument is one lock. Its _id is the unique key that makes two holders impossible.
type lockDocument struct {
	Name  string    `bson:"_id"`
	Owner string    `bson:"owner"`
	Epoch int64     `bson:"epoch"`
	Until time.Time `bson:"until"`
	Note  string    `bson:"note"`
}

func (d lockDocument) lease(owner string) task.Lease {
	return task.Lease{Name: d.Name, Owner: d.Owner, Held: d.Owner == owner, Epoch: d.Epoch, Until: d.Until.UTC(), Note: d.Note}
}

// Acquire takes a lock for ttl when it is free, over, or the owner's already; the epoch rises with each acquisition. A lock that
// another holds is an answer (Held false), not an error. Owner must be unlike any other process's.
//
// The server's clock decides, in the write itself: of two that find it over at the same time, the second meets the first one's
// until. After an error the lock may be held; asking again settles it.
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (task.Lease, error) {
	free := bson.D{{Key: "$or", Value: bson.A{
		passed("$until"),
		bson.D{{Key: "$eq", Value: bson.A{"$owner", literal(owner)}}},
	}}}
	taken := func(then, otherwise any) bson.D { return bson.D{{Key: "$cond", Value: bson.A{free, then, otherwise}}} }
	count := bson.D{{Key: "$ifNull", Value: bson.A{"$epoch", int64(0)}}}
	update := mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "owner", Value: taken(literal(owner), "$owner")},
		{Key: "epoch", Value: taken(add(count, int64(1)), "$epoch")},
		{Key: "until", Value: taken(later("$$NOW", ttl.Milliseconds()), "$until")},
		{Key: "note", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$note", ""}}}},
	}}}}
	// Update, then find: a findAndModify that meets another's upsert finds nothing on some servers.
	locks := s.hotDB.Collection(locksCollection)
	_, err := locks.UpdateOne(ctx, bson.D{{Key: "_id", Value: name}}, update, options.UpdateOne().SetUpsert(true))
	if err != nil && !mongo.IsDuplicateKeyError(err) { // a duplicate: another made the lock's document in the same moment
		return task.Lease{}, fmt.Errorf("acquire lock %s: %w", name, err)
	}
	var d lockDocument
	if err := locks.FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&d); err != nil {
		return task.Lease{}, fmt.Errorf("acquire lock %s: %w", name, err)
	}
	return d.lease(owner), nil
}

// Renew extends a lock that is held and replaces its note. [task.ErrNotLeader]: it has passed to another.
func (s *Store) Renew(ctx context.Context, held task.Lease, ttl time.Duration, note string) (task.Lease, error) {
	locks := s.hotDB.Collection(locksCollection)
	result, err := locks.UpdateOne(ctx, lockGuard(held), mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "until", Value: later("$$NOW", ttl.Milliseconds())}, {Key: "note", Value: literal(note)}}}}})
	if err == nil && result.MatchedCount == 0 {
		err = task.ErrNotLeader
	}
	var d lockDocument
	if err == nil {
		if err = locks.FindOne(ctx, lockGuard(held)).Decode(&d); errors.Is(err, mongo.ErrNoDocuments) {
			err = task.ErrNotLeader // it passed to another since
		}
	}
	if err != nil {
		return task.Lease{}, fmt.Errorf("renew lock %s: %w", held.Name, err)
	}
	return d.lease(held.Owner), nil
}

// Release gives a lock up if it is still held under that epoch, and keeps its note.
func (s *Store) Release(ctx context.Context, held task.Lease) error {
	_, err := s.hotDB.Collection(locksCollection).UpdateOne(ctx, lockGuard(held),
		bson.D{{Key: "$set", Value: bson.D{{Key: "until", Value: longAgo}, {Key: "owner", Value: ""}}}})
	if err != nil {
		return fmt.Errorf("release lock %s: %w", held.Name, err)
	}
	return nil
}

// lockGuard keeps a former holder, paused or cut off while the lock passed on, from extending or freeing its successor's.
func lockGuard(held task.Lease) bson.D {
	return bson.D{{Key: "_id", Value: held.Name}, {Key: "owner", Value: held.Owner}, {Key: "epoch", Value: held.Epoch}}
}
