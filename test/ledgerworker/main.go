// Command ledgerworker is the worker of the tests of whole systems: its handlers do what the payload says and note each execution
// in a ledger, which is the ground truth those tests compare ax with.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/worker"
)

// Work is the payload.
type Work struct {
	RunMs int  `json:"runMs"` // how long the handler takes
	Fail  int  `json:"fail"`  // how many attempts fail
	Deaf  bool `json:"deaf"`  // ignores the end of its context
	Exit  bool `json:"exit"`  // takes the whole process down
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ledgerworker:", err)
		os.Exit(1)
	}
}

// run reads its own settings from LEDGER_ variables: file, worker name, slots, types (separated by commas), lease and beat.
func run(ctx context.Context) error {
	var common process.WithNATS
	if err := process.Load("worker", &common); err != nil {
		return err
	}
	slots, err := strconv.Atoi(os.Getenv("LEDGER_SLOTS"))
	if err != nil {
		return fmt.Errorf("LEDGER_SLOTS: %w", err)
	}
	lease, err := time.ParseDuration(os.Getenv("LEDGER_LEASE"))
	if err != nil {
		return fmt.Errorf("LEDGER_LEASE: %w", err)
	}
	return process.Run(ctx, "worker", common.Common, func(_ context.Context, p *process.Process) error {
		book, err := ledger.Open(os.Getenv("LEDGER_FILE"), os.Getenv("LEDGER_NAME"))
		if err != nil {
			return err
		}
		p.OnStop("ledger", func(context.Context) error { return book.Close() })
		w, err := worker.New(worker.Options{ID: os.Getenv("LEDGER_NAME"), MongoURI: common.MongoURI, Database: common.Database,
			NATSURL: common.NATSURL, Slots: slots, Lease: lease, Log: p.Log, Registerer: p.Registry,
			Confirmed: func(executionID string, until time.Time) {
				if err := book.Write(ledger.Record{Kind: ledger.Fenced, Execution: executionID, At: ledger.Until(until)}); err != nil {
					p.Log.Error("the ledger cannot be written", "err", err) // the execution then counts as longer than it was
				}
			}})
		if err != nil {
			return err
		}
		for name := range strings.SplitSeq(os.Getenv("LEDGER_TYPES"), ",") {
			worker.HandleFunc(w, name, func(ctx context.Context, t worker.Task) (any, error) { return work(ctx, book, t) })
		}
		p.Go("worker", w.Run)
		return nil
	})
}

func work(ctx context.Context, book *ledger.Writer, t worker.Task) (_ any, err error) {
	var in Work
	if len(t.Payload) > 0 {
		if err := json.Unmarshal(t.Payload, &in); err != nil {
			return nil, worker.NonRetryable(err)
		}
	}
	record := ledger.Record{Kind: ledger.Started, Task: t.ID, Type: t.Type, Attempt: t.Attempt, Execution: t.ExecutionID, Lane: string(task.LaneOf(t.Priority))}
	if err := book.Write(record); err != nil {
		return nil, err
	}
	if in.Exit {
		os.Exit(1)
	}
	end := func(outcome string) error {
		record.Kind, record.At, record.Outcome = ledger.Ended, 0, outcome
		return book.Write(record)
	}
	// An execution ends with its context, whatever the handler goes on to do: from then on it is not valid any more.
	ran := time.NewTimer(time.Duration(in.RunMs) * time.Millisecond)
	defer ran.Stop()
	select {
	case <-ran.C:
	case <-ctx.Done():
		cause := context.Cause(ctx)
		if err := end(cause.Error()); err != nil {
			return nil, err
		}
		if in.Deaf {
			<-ran.C
			return nil, nil
		}
		return nil, cause
	}
	if t.Failures < in.Fail {
		return nil, errors.Join(errors.New("this attempt fails by plan"), end("error"))
	}
	return map[string]int{"attempt": t.Attempt}, end("ok")
}
