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

const cursorsCollection = "stream_cursors"

// LoadCursor returns the stored place of a reader of the change stream, and the database's time up to which the reader had dealt
// with all changes. No token: none was stored, or it was dropped; a zero time: the reader never ran.
func (s *Store) LoadCursor(ctx context.Context, name string) (token []byte, at time.Time, err error) {
	var d struct {
		Token []byte    `bson:"token"`
		At    time.Time `bson:"at"`
	}
	err = s.hotDB.Collection(cursorsCollection).FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("load cursor %s: %w", name, err)
	}
	if !d.At.IsZero() {
		d.At = d.At.UTC()
	}
	return d.Token, d.At, nil
}

// SaveCursor stores the place of a reader; a nil token drops the stored one. at is the database's time up to which everything
// has been dealt with; zero: now. [task.ErrNotLeader]: a leader of a higher epoch has stored one, which stays.
func (s *Store) SaveCursor(ctx context.Context, name string, token []byte, at time.Time, epoch int64) error {
	var when any = "$$NOW"
	if !at.IsZero() {
		when = literal(at)
	}
	update := mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "token", Value: literal(token)}, {Key: "at", Value: when}, {Key: "epoch", Value: literal(epoch)}}}}}
	// The guard keeps a former leader from moving the place back behind its successor's.
	guard := bson.D{{Key: "_id", Value: name}, {Key: "epoch", Value: bson.D{{Key: "$lte", Value: epoch}}}}
	cursors := s.hotDB.Collection(cursorsCollection)
	_, err := cursors.UpdateOne(ctx, guard, update, options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) { // it is there: of a later leader, or made by a former one in the same moment
		var result *mongo.UpdateResult
		if result, err = cursors.UpdateOne(ctx, guard, update); err == nil && result.MatchedCount == 0 {
			err = task.ErrNotLeader
		}
	}
	if err != nil {
		return fmt.Errorf("save cursor %s: %w", name, err)
	}
	return nil
}
