package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/worker"
)

// workerCommand is the argument that makes this program a worker. Its settings come from the environment of the driver.
const (
	workerCommand = "worker"
	envLedger     = "REPLAY_LEDGER"
	envData       = "REPLAY_DATA"
	envName       = "REPLAY_WORKER"
	envSlots      = "REPLAY_SLOTS"
)

// invocation is the payload of a replayed task.
type invocation struct {
	RunMs     float64 `json:"runMs"`     // how long the handler takes
	Fail      int     `json:"fail"`      // how many attempts fail before one succeeds
	Published int64   `json:"published"` // nanoseconds of the machine's monotonic clock
}

// errPlanned is the failure of an attempt that was meant to fail.
var errPlanned = errors.New("this attempt fails by plan")

func runWorker(ctx context.Context) error {
	var common process.WithNATS
	if err := process.Load("worker", &common); err != nil {
		return err
	}
	return process.Run(ctx, "worker", common.Common, func(_ context.Context, p *process.Process) error {
		book, err := ledger.Open(os.Getenv(envLedger), os.Getenv(envName))
		if err != nil {
			return err
		}
		p.OnStop("ledger", func(context.Context) error { return book.Close() })
		tr, err := loadTrace(os.Getenv(envData))
		if err != nil {
			return err
		}
		slots, err := strconv.Atoi(os.Getenv(envSlots))
		if err != nil {
			return fmt.Errorf("%s: %w", envSlots, err)
		}
		w, err := worker.New(worker.Options{ID: os.Getenv(envName), MongoURI: common.MongoURI, Database: common.Database,
			NATSURL: common.NATSURL, Slots: slots, Log: p.Log, Registerer: p.Registry})
		if err != nil {
			return err
		}
		for _, f := range tr.functions {
			worker.HandleFunc(w, f.Type, func(ctx context.Context, t worker.Task) (any, error) { return invoke(ctx, book, t) })
		}
		p.Go("worker", w.Run)
		return nil
	})
}

// invoke is one execution: it takes the recorded time, and tells the ledger when it began and ended.
func invoke(ctx context.Context, book *ledger.Writer, t worker.Task) (_ any, err error) {
	var in invocation
	if err := json.Unmarshal(t.Payload, &in); err != nil {
		return nil, worker.NonRetryable(err)
	}
	record := ledger.Record{Kind: ledger.Started, Task: t.ID, Type: t.Type, Attempt: t.Attempt, Execution: t.ExecutionID,
		Lane: string(task.LaneOf(t.Priority)), At: ledger.Now()}
	record.Waited = record.At - in.Published
	if err := book.Write(record); err != nil {
		return nil, err
	}
	defer func() {
		end := ledger.Record{Kind: ledger.Ended, Task: t.ID, Type: t.Type, Attempt: t.Attempt, Execution: t.ExecutionID, Outcome: "ok"}
		if err != nil {
			end.Outcome = err.Error()
		}
		if bookErr := book.Write(end); bookErr != nil && err == nil {
			err = bookErr
		}
	}()
	run := time.NewTimer(time.Duration(in.RunMs * float64(time.Millisecond)))
	defer run.Stop()
	select {
	case <-run.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if t.Failures < in.Fail {
		return nil, worker.ErrorCode("planned", errPlanned)
	}
	return map[string]float64{"ranMs": in.RunMs}, nil
}
