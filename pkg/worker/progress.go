package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// progressEvery is at most how often the progress of one execution is written at once; what comes sooner waits for the next
// call or the next heartbeat.
const progressEvery = time.Second

// maxFlush bounds the writes of progress that one heartbeat makes.
const maxFlush = 200

type progressState struct {
	mu      sync.Mutex
	written time.Time
	waiting json.RawMessage // newer than what was written; nil: none
}

// Progress stores v, as JSON of up to 8 KiB, as the progress of the task whose handler was given ctx: the newest value is
// what others see. It may be called as often as one likes: at most one value a second is written at once, others wait for the
// next call or heartbeat, or are dropped when the task ends. An error does not end the task; one that matches [ErrLeaseLost]
// says that the execution is no longer valid.
func Progress(ctx context.Context, v any) error {
	e, ok := ctx.Value(contextKey{}).(*execution)
	if !ok {
		return ErrNoTask
	}
	if ctx.Err() != nil {
		return fmt.Errorf("progress: %w", context.Cause(ctx))
	}
	value, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("progress: %w", err)
	}
	if len(value) > task.MaxProgress {
		return fmt.Errorf("progress: %d bytes of JSON, at most %d", len(value), task.MaxProgress)
	}
	p := &e.progress
	p.mu.Lock()
	if time.Since(p.written) < progressEvery {
		p.waiting = value
		p.mu.Unlock()
		return nil
	}
	p.written, p.waiting = time.Now(), nil
	p.mu.Unlock()
	return e.writeProgress(ctx, value)
}

func (e *execution) writeProgress(ctx context.Context, value json.RawMessage) error {
	err := e.store.Progress(ctx, e.owned(), value)
	if errors.Is(err, task.ErrLeaseLost) {
		return fmt.Errorf("progress: %w", ErrLeaseLost)
	}
	return err
}

// flushProgress writes what waits, as far as the time goes.
func (r *runs) flushProgress(ctx context.Context) {
	n := 0
	for _, e := range r.handlers(func(e *execution) bool { return e.verdict == undecided }) {
		e.progress.mu.Lock()
		value := e.progress.waiting
		if value != nil {
			e.progress.written, e.progress.waiting = time.Now(), nil
		}
		e.progress.mu.Unlock()
		if value == nil {
			continue
		}
		if n++; n > maxFlush || e.writeProgress(ctx, value) != nil { // the next call or beat brings a newer one
			return
		}
	}
}
