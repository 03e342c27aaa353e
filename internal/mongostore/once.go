package mongostore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

const onceCollection = "once"

type onceDocument struct {
	Key   string    `bson:"_id"`
	Owner string    `bson:"owner"` // execution that holds the key, or did it
	Done  bool      `bson:"done"`
	Value string    `bson:"value"` // JSON
	Lease time.Time `bson:"leaseUntil"`
}

// BeginOnce asks for the right to do what stands under a key. Of all executions that ask, one gets it, until lease has passed; once
// it is done, all others get its value.
//
// The server's clock decides in the write itself. A reservation whose holder died is taken over when its lease is over, so what
// the holder had done up to then may be done again: the caller completes right after the side effect to keep that moment short.
func (s *Store) BeginOnce(ctx context.Context, key, execution string, lease, keep time.Duration) (task.Once, error) {
	mine := bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$not", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$done", false}}}}}},
		bson.D{{Key: "$or", Value: bson.A{
			bson.D{{Key: "$eq", Value: bson.A{"$owner", literal(execution)}}},
			passed("$leaseUntil"),
		}}},
	}}}
	taken := func(then, otherwise any) bson.D { return bson.D{{Key: "$cond", Value: bson.A{mine, then, otherwise}}} }
	update := mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "owner", Value: taken(literal(execution), "$owner")},
		{Key: "leaseUntil", Value: taken(later("$$NOW", lease.Milliseconds()), "$leaseUntil")},
		{Key: "until", Value: taken(later("$$NOW", keep.Milliseconds()), "$until")},
		{Key: "done", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$done", false}}}},
		{Key: "value", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$value", ""}}}},
	}}}}
	c := s.hotDB.Collection(onceCollection)
	// Update, then find: a findAndModify would cost the server a third write, and a scan on some.
	_, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: key}}, update, options.UpdateOne().SetUpsert(true))
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		return task.Once{}, fmt.Errorf("begin once: %w", err)
	}
	var d onceDocument
	if err := c.FindOne(ctx, bson.D{{Key: "_id", Value: key}}).Decode(&d); err != nil {
		return task.Once{}, fmt.Errorf("begin once: %w", err)
	}
	o := task.Once{Done: d.Done, Mine: !d.Done && d.Owner == execution}
	if d.Done && d.Value != "" {
		o.Value = json.RawMessage(d.Value)
	}
	return o, nil
}

// CompleteOnce stores that the key is done, with the value every later asker gets, for keep. [task.ErrLeaseLost]: another
// execution holds the key by now.
func (s *Store) CompleteOnce(ctx context.Context, key, execution string, value json.RawMessage, keep time.Duration) error {
	// The guard keeps an execution whose reservation was taken over from putting its value over the other's.
	update := mongo.Pipeline{{{Key: "$set", Value: bson.D{{Key: "done", Value: true}, {Key: "value", Value: literal(string(value))},
		{Key: "until", Value: later("$$NOW", keep.Milliseconds())}}}}}
	result, err := s.hotDB.Collection(onceCollection).UpdateOne(ctx, onceGuard(key, execution), update)
	if err != nil {
		return fmt.Errorf("complete once: %w", err)
	}
	if result.MatchedCount == 0 {
		var d onceDocument
		err := s.hotDB.Collection(onceCollection).FindOne(ctx, bson.D{{Key: "_id", Value: key}}).Decode(&d)
		if err == nil && d.Done && d.Owner == execution { // recorded by an earlier call whose reply was lost
			return nil
		}
		if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			return fmt.Errorf("complete once: %w", err)
		}
		return fmt.Errorf("complete once: %w", task.ErrLeaseLost)
	}
	return nil
}

// AbandonOnce gives a reservation back, because nothing was done: the next asker gets it at once.
func (s *Store) AbandonOnce(ctx context.Context, key, execution string) error {
	if _, err := s.hotDB.Collection(onceCollection).DeleteOne(ctx, onceGuard(key, execution)); err != nil {
		return fmt.Errorf("abandon once: %w", err)
	}
	return nil
}

func onceGuard(key, execution string) bson.D {
	return bson.D{{Key: "_id", Value: key}, {Key: "owner", Value: execution}, {Key: "done", Value: false}}
}
