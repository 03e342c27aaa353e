package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// ceiling is what the bare driver does with the very documents, indexes and commands that ax uses, and nothing else running: tasks
// a second of each step, the best over batches and clients, and of the chain of all three.
type ceiling struct {
	insert, claim, finish float64
}

// chain is the rate of a task that goes through all steps one after the other on the same server.
func (c ceiling) chain() float64 { return 1 / (1/c.insert + 1/c.claim + 1/c.finish) }

const ceilingTasks = 8000 // of each measurement; long enough for a second on a slow machine

// measureCeiling takes the best of batches 100, 500, 1,000 and clients 2, 4, 8 for each step.
func measureCeiling(ctx context.Context, uri, database string) (best ceiling, err error) {
	store, err := mongostore.Open(ctx, mongostore.Options{URI: uri, Database: database, AppName: "ax-bench-ceiling"})
	if err != nil {
		return best, err
	}
	defer store.Close(context.WithoutCancel(ctx))
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetMaxPoolSize(16))
	if err != nil {
		return best, err
	}
	defer client.Disconnect(context.WithoutCancel(ctx))
	db := client.Database(database, options.Database().SetWriteConcern(writeconcern.Majority()))
	for _, batch := range []int{100, 500, 1000} {
		for _, clients := range []int{2, 4, 8} {
			if err := db.Collection(mongostore.TasksCollection).Drop(ctx); err != nil {
				return best, err
			}
			if err := store.EnsureIndexes(ctx); err != nil {
				return best, err
			}
			one, err := measureOnce(ctx, store, db.Collection(mongostore.TasksCollection), batch, clients)
			if err != nil {
				return best, err
			}
			best.insert, best.claim, best.finish = max(best.insert, one.insert), max(best.claim, one.claim), max(best.finish, one.finish)
		}
	}
	return best, db.Drop(ctx)
}

func measureOnce(ctx context.Context, store *mongostore.Store, tasks *mongo.Collection, batch, clients int) (c ceiling, err error) {
	batches := ceilingTasks / batch
	inserts := make([][]any, batches)
	ids := make([][]string, batches)
	for b := range batches {
		made := make([]*task.Task, batch)
		for i := range made {
			made[i] = noopTask()
			ids[b] = append(ids[b], made[i].ID)
		}
		docs, _, err := store.Prepare(ctx, made)
		if err != nil {
			return c, err
		}
		for _, doc := range docs {
			inserts[b] = append(inserts[b], doc)
		}
	}
	if c.insert, err = rate(batches, batch, clients, func(b int) error {
		_, err := tasks.InsertMany(ctx, inserts[b], options.InsertMany().SetOrdered(false))
		return err
	}); err != nil {
		return c, fmt.Errorf("insert: %w", err)
	}

	now, bound, err := store.Now()
	if err != nil {
		return c, err
	}
	claims := make([]task.ClaimRequest, batches)
	if c.claim, err = rate(batches, batch, clients, func(b int) error {
		claims[b] = task.ClaimRequest{IDs: ids[b], Claim: events.NewToken(), Worker: "bench", Lease: task.DefaultLease}
		filter, update, err := mongostore.ClaimCommand(claims[b], now.Add(time.Second), bound)
		if err != nil {
			return err
		}
		if result, err := tasks.UpdateMany(ctx, filter, update); err != nil || int(result.ModifiedCount) != batch {
			return fmt.Errorf("claimed %v of %d: %w", result, batch, err)
		}
		find, projection := store.ResolveCommand(claims[b])
		opts := options.Find().SetBatchSize(int32(batch + 1))
		if projection != nil {
			opts.SetProjection(projection)
		}
		cursor, err := tasks.Find(ctx, find, opts)
		if err != nil {
			return err
		}
		var found []bson.Raw
		if err := cursor.All(ctx, &found); err != nil || len(found) != batch {
			return fmt.Errorf("found %d of %d: %w", len(found), batch, err)
		}
		return nil
	}); err != nil {
		return c, fmt.Errorf("claim: %w", err)
	}

	if c.finish, err = rate(batches, batch, clients, func(b int) error {
		outcomes := make([]task.Outcome, batch)
		for i, id := range ids[b] {
			outcomes[i] = task.Outcome{Owned: task.Owned{ID: id, Claim: claims[b].Claim}, Worker: "bench", Kind: task.Succeeded,
				Result: json.RawMessage(`{"ok":true}`)}
		}
		filter, update, err := mongostore.FinishCommand(outcomes)
		if err != nil {
			return err
		}
		if result, err := tasks.UpdateMany(ctx, filter, update); err != nil || int(result.ModifiedCount) != batch {
			return fmt.Errorf("finished %v of %d: %w", result, batch, err)
		}
		return nil
	}); err != nil {
		return c, fmt.Errorf("finish: %w", err)
	}
	return c, nil
}

// rate runs the batches on several clients side by side and returns tasks a second.
func rate(batches, batch, clients int, do func(b int) error) (float64, error) {
	next := make(chan int)
	failed := make(chan error, clients)
	var running sync.WaitGroup
	begun := time.Now()
	for range clients {
		running.Go(func() {
			for b := range next {
				if err := do(b); err != nil {
					failed <- err
					for range next { // let the others end
					}
					return
				}
			}
		})
	}
	for b := range batches {
		next <- b
	}
	close(next)
	running.Wait()
	took := time.Since(begun)
	select {
	case err := <-failed:
		return 0, err
	default:
		return float64(batches*batch) / took.Seconds(), nil
	}
}

// noopTask is the task of all measurements.
func noopTask() *task.Task {
	return &task.Task{
		ID: events.NewID(), Type: noopType, Priority: task.DefaultPriority, Channel: task.ChannelStable,
		MaxAttempts: task.DefaultMaxAttempts, MaxLosses: task.DefaultMaxLosses, Timeout: task.DefaultTimeout, Retry: task.DefaultRetry,
		OnExhausted: task.DeadLetter, Payload: json.RawMessage(`{"published":1234567890123456}`), Source: "nats", SubmitHash: "v1:" + events.NewToken(),
	}
}
