package client

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
)

// InsertTx stores tasks inside the caller's transaction and returns their ids: they exist if and only if it commits, and start
// after that. ctx is the session's context, as mongo.Session.WithTransaction passes it; db is [Options.Database], reached through
// the caller's own client. [Options.MongoURI] must be set, because the database's time is asked for beside the transaction.
//
// A task that is stored already, by the same submission, is no error: the same transaction may be run again when it is not known
// whether it was committed. An id that another submission has is refused with code id_conflict, and the transaction must then be
// given up; the same goes for a unique key that another task holds (code unique_held).
func (c *Client) InsertTx(ctx context.Context, db *mongo.Database, tasks ...Task) ([]string, error) {
	for _, t := range tasks {
		if err := t.Check(); err != nil {
			return nil, err
		}
	}
	if len(tasks) == 0 {
		return nil, nil
	}
	beside := outside{ctx}
	store, err := c.openStore(beside)
	if err != nil {
		return nil, err
	}
	switch {
	case mongo.SessionFromContext(ctx) == nil:
		return nil, errors.New("insert in a transaction: ctx carries no session; pass the context that WithTransaction calls its function with")
	case db.Name() != c.opts.Database:
		return nil, fmt.Errorf("insert in a transaction: the database given is %s, and ax uses %s (Options.Database)", db.Name(), c.opts.Database)
	}
	now, _, err := store.Now()
	if err != nil {
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	ids := make([]string, len(tasks))
	first := map[string]string{} // hashes by id
	var built []*task.Task
	for i, t := range tasks {
		one, err := intake.Build(&t.request.Submit, intake.Origin{Type: t.request.Type, Source: intake.SourceTx, Now: now})
		if err != nil {
			return nil, err
		}
		ids[i] = one.ID
		hash, again := first[one.ID]
		switch {
		case !again:
			first[one.ID], built = one.SubmitHash, append(built, one)
		case hash != one.SubmitHash:
			return nil, intake.IDConflict(one.ID)
		}
	}
	docs, status, err := store.Prepare(beside, built)
	if err != nil {
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	for i, t := range built {
		if t.Unique == nil || status[i] != 0 {
			continue
		}
		if status[i], err = store.InsertUnique(ctx, db, t); err != nil {
			return nil, fmt.Errorf("insert in a transaction: %w", err)
		}
		answer, err := intake.Answer(t, status[i])
		if err != nil {
			return nil, err
		}
		for n := range ids { // a key that is kept: the holder's id
			if ids[n] == t.ID {
				ids[n] = answer.ID
			}
		}
	}
	coll := db.Collection(mongostore.TasksCollection)
	stored, err := storedHashes(ctx, coll, ids)
	if err != nil {
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	var inserts []any
	var places []int
	for i, doc := range docs {
		hash, there := stored[built[i].ID]
		switch {
		case status[i] == task.Conflict, there && hash != built[i].SubmitHash:
			return nil, intake.IDConflict(built[i].ID)
		case status[i] == 0 && !there && doc != nil:
			inserts, places = append(inserts, doc), append(places, i)
		}
	}
	if len(inserts) == 0 {
		return ids, nil
	}
	_, err = coll.InsertMany(ctx, inserts)
	var refused mongo.BulkWriteException
	switch {
	case err == nil:
		return ids, nil
	case mongo.IsDuplicateKeyError(err) && errors.As(err, &refused) && len(refused.WriteErrors) > 0: // stored since it was looked for
		return nil, fmt.Errorf("%w: %w", intake.IDConflict(built[places[refused.WriteErrors[0].Index]].ID), err)
	}
	return nil, fmt.Errorf("insert in a transaction: %w", err)
}

// storedHashes reads, inside the transaction, what has these ids already.
func storedHashes(ctx context.Context, coll *mongo.Collection, ids []string) (map[string]string, error) {
	cursor, err := coll.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}},
		options.Find().SetProjection(bson.D{{Key: "submitHash", Value: 1}}))
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
	return hashes, nil
}

// outside ends when the caller's context does and carries none of its values: the driver finds the caller's session among them,
// and another client's reads must not join it.
type outside struct{ context.Context }

// Value knows nothing.
func (outside) Value(any) any { return nil }

// openStore connects to the database at the first use.
func (c *Client) openStore(ctx context.Context) (*mongostore.Store, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.store != nil:
		return c.store, nil
	case c.opts.MongoURI == "":
		return nil, errors.New("insert in a transaction: Options.MongoURI is not set; give the address of the database that ax uses")
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	store, err := mongostore.Open(ctx, mongostore.Options{URI: c.opts.MongoURI, Database: c.opts.Database, AppName: c.opts.Name, Log: c.opts.Log})
	if err != nil {
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	c.store = store
	return store, nil
}
