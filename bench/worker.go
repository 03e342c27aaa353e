package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/pkg/worker"
)

// workerCommand is the argument that makes this program a worker.
const (
	workerCommand = "worker"
	noopType      = "noop"
	envLedger     = "BENCH_LEDGER"
	envSlots      = "BENCH_SLOTS"
)

// noop is the payload of a measured task.
type noop struct {
	Published int64 `json:"published"` // nanoseconds of the machine's monotonic clock, just before the publish
}

// runWorker runs a worker whose handler does nothing but note when it began. The ledger is written by a loop beside the handlers,
// so that its file does not slow what is measured.
func runWorker(ctx context.Context) error {
	var common process.WithNATS
	if err := process.Load("worker", &common); err != nil {
		return err
	}
	slots, err := strconv.Atoi(os.Getenv(envSlots))
	if err != nil {
		return fmt.Errorf("%s: %w", envSlots, err)
	}
	return process.Run(ctx, "worker", common.Common, func(_ context.Context, p *process.Process) error {
		book, err := ledger.Open(os.Getenv(envLedger), "bench")
		if err != nil {
			return err
		}
		p.OnStop("ledger", func(context.Context) error { return book.Close() })
		w, err := worker.New(worker.Options{ID: "bench", MongoURI: common.MongoURI, Database: common.Database, NATSURL: common.NATSURL,
			Slots: slots, Log: p.Log, Registerer: p.Registry})
		if err != nil {
			return err
		}
		records := make(chan ledger.Record, 1<<16)
		p.Go("ledger", func(ctx context.Context) error {
			for {
				select {
				case r := <-records:
					if err := book.Write(r); err != nil {
						return err
					}
				case <-ctx.Done():
					return nil
				}
			}
		})
		worker.HandleFunc(w, noopType, func(ctx context.Context, t worker.Task) (any, error) {
			var in noop
			if err := json.Unmarshal(t.Payload, &in); err != nil {
				return nil, err
			}
			now := ledger.Now()
			select {
			case records <- ledger.Record{Kind: ledger.Started, At: now, Task: t.ID, Type: t.Type, Attempt: t.Attempt, Execution: t.ExecutionID, Waited: now - in.Published}:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return struct {
				OK bool `json:"ok"`
			}{true}, nil
		})
		worker.HandleFunc(w, stuckType, func(context.Context, worker.Task) (any, error) { select {} })
		worker.HandleFunc(w, largeType, func(context.Context, worker.Task) (any, error) { return largeResult(), nil })
		p.Go("worker", w.Run)
		return nil
	})
}
