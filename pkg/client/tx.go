package client

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// InsertTx stores tasks inside the caller's transaction and returns their ids: they exist if and only if it commits, and start
// after that. ctx is the session's context, as mongo.Session.WithTransaction passes it; db is the database that ax uses, reached
// through the caller's own client. [Options.MongoURI] must be set, because the database's time is asked for beside the
// transaction.
//
// An id that is taken is refused with code id_conflict, and the transaction must then be given up. A repeat of the whole
// transaction with the same ids therefore tells that it had been committed.
func (c *Client) InsertTx(ctx context.Context, db *mongo.Database, tasks ...Task) ([]string, error) {
	store, err := c.openStore(ctx)
	if err != nil {
		return nil, err
	}
	now, _, err := store.Now()
	if err != nil {
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	built := make([]*task.Task, len(tasks))
	ids := make([]string, len(tasks))
	for i, t := range tasks {
		if t.err != nil {
			return nil, t.err
		}
		if built[i], err = intake.Build(&t.request.Submit, intake.Origin{Type: t.request.Type, Source: intake.SourceTx, Now: now}); err != nil {
			return nil, err
		}
		ids[i] = built[i].ID
	}
	// Outside of the transaction: Prepare reads with the store's own client.
	docs, status, err := store.Prepare(context.WithoutCancel(ctx), built)
	if err != nil {
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	inserts := make([]any, len(docs))
	for i, doc := range docs {
		if status[i] != 0 {
			return nil, taken(ids[i])
		}
		inserts[i] = doc
	}
	if len(inserts) == 0 {
		return nil, nil
	}
	if _, err := db.Collection(mongostore.TasksCollection).InsertMany(ctx, inserts); err != nil {
		if mongo.IsDuplicateKeyError(err) {
			return nil, fmt.Errorf("%w: %w", taken(ids[0]), err)
		}
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	return ids, nil
}

func taken(id string) *events.Error {
	return &events.Error{Code: events.CodeIDConflict, Field: "id", Value: id,
		Message: fmt.Sprintf("a task with id %s, or of another one of the same call, is stored already; give the transaction up", id)}
}

// openStore connects to the database at the first use. The connection is the client's, not the caller's, and must not join the
// caller's session.
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
	defer cancel()
	store, err := mongostore.Open(ctx, mongostore.Options{URI: c.opts.MongoURI, Database: c.opts.Database, AppName: c.opts.Name, Log: c.opts.Log})
	if err != nil {
		return nil, fmt.Errorf("insert in a transaction: %w", err)
	}
	c.store = store
	return store, nil
}
