package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	chainTasks = 400
	chainGap   = 5 * time.Millisecond // 200 a second
)

// measureChain is the latency that no scheduler on this store can be under: insert, change event, claim, find, one task after the
// other, in one process and without NATS.
func measureChain(ctx context.Context, uri, database string) ([]time.Duration, error) {
	store, err := mongostore.Open(ctx, mongostore.Options{URI: uri, Database: database, AppName: "ax-bench-chain"})
	if err != nil {
		return nil, err
	}
	defer store.Close(context.WithoutCancel(ctx))
	if err := store.EnsureIndexes(ctx); err != nil {
		return nil, err
	}
	stream, err := store.OpenStream(ctx, mongostore.StreamOptions{})
	if err != nil {
		return nil, err
	}
	defer stream.Close()

	took := make([]time.Duration, 0, chainTasks)
	ticker := time.NewTicker(chainGap)
	defer ticker.Stop()
	for range chainTasks {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		t := noopTask()
		begun := time.Now()
		if _, err := store.Insert(ctx, []*task.Task{t}); err != nil {
			return nil, err
		}
		if err := awaitChange(ctx, stream, t.ID); err != nil {
			return nil, err
		}
		got, err := store.Claim(ctx, task.ClaimRequest{IDs: []string{t.ID}, Claim: events.NewToken(), Worker: "bench", Lease: task.DefaultLease})
		if err != nil || len(got) != 1 {
			return nil, fmt.Errorf("claimed %d tasks: %w", len(got), err)
		}
		took = append(took, time.Since(begun))
	}
	return sorted(took), nil
}

func awaitChange(ctx context.Context, stream *mongostore.Stream, id string) error {
	for {
		seen, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		for _, o := range seen {
			if o.ID == id && o.Change.To == task.Pending {
				return nil
			}
		}
	}
}
