package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	// OnceKeep is how long [Once] remembers that a key is done.
	OnceKeep = 30 * 24 * time.Hour

	maxOnceKey    = 256
	onceTries     = 5
	onceTryFirst  = 50 * time.Millisecond
	onceTryMost   = time.Second
	onceBusyDelay = 2 * time.Second // before a task whose key is held is called again
)

// Once does something once per key, over all tasks and attempts: the first execution that asks calls fn, and what fn returned,
// as JSON, is stored and given to all others that ask within [OnceKeep]; goroutines of one handler wait for each other. An error of
// fn is not stored: the key is free again.
//
//	receipt, err := worker.Once(ctx, "charge:"+order.ID, func(ctx context.Context) (Receipt, error) {
//		return bank.Charge(ctx, order)
//	})
//
// While another execution is inside fn, Once returns an error that matches [ErrBusy] and that, returned from the handler,
// snoozes the task for a moment at no cost. The key is held under a lease that is renewed while fn runs; when the process
// dies between the side effect and the end of fn, the next one calls fn again. The key is 1 to 256 bytes, and the value at
// most 512 KiB of JSON.
func Once[T any](ctx context.Context, key string, fn func(ctx context.Context) (T, error)) (value T, err error) {
	e, ok := ctx.Value(contextKey{}).(*execution)
	if !ok {
		return value, ErrNoTask
	}
	if key == "" || len(key) > maxOnceKey || !plain(key) {
		return value, NonRetryable(fmt.Errorf("once: the key %q is not allowed; give 1 to %d bytes of text without control characters", cut(key, maxOnceKey), maxOnceKey))
	}
	if inside, _ := ctx.Value(onceKey(key)).(*execution); inside == e {
		return value, NonRetryable(fmt.Errorf("once: the key %q is asked for inside of its own function", key))
	}
	leave, err := e.enterOnce(ctx, key)
	if err != nil {
		return value, err
	}
	defer leave()
	stored, err := e.once(context.WithValue(ctx, onceKey(key), e), key, func(ctx context.Context) (json.RawMessage, error) {
		var err error
		if value, err = fn(ctx); err != nil {
			return nil, err
		}
		return json.Marshal(value)
	})
	if err != nil || stored == nil {
		return value, err
	}
	if err := json.Unmarshal(stored, &value); err != nil {
		return value, NonRetryable(fmt.Errorf("once: the value stored under %q cannot be decoded into %T: %w", key, value, err))
	}
	return value, nil
}

// onceKey marks the contexts inside of a key's function.
type onceKey string

// enterOnce lets the goroutines of one execution in one after the other: the database tells executions apart, not what is inside of them.
func (e *execution) enterOnce(ctx context.Context, key string) (leave func(), err error) {
	for {
		e.onceMu.Lock()
		left, taken := e.onceIn[key]
		if !taken {
			mine := make(chan struct{})
			if e.onceIn == nil {
				e.onceIn = map[string]chan struct{}{}
			}
			e.onceIn[key] = mine
			e.onceMu.Unlock()
			return func() {
				e.onceMu.Lock()
				delete(e.onceIn, key)
				e.onceMu.Unlock()
				close(mine)
			}, nil
		}
		e.onceMu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// once returns the value stored before, or nil after fn has been called.
func (e *execution) once(ctx context.Context, key string, fn func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	var held task.Once
	sent := time.Now()
	err := tries(ctx, func(ctx context.Context) (err error) {
		sent = time.Now()
		held, err = e.store.BeginOnce(ctx, key, e.public.ExecutionID, e.runs.lease, OnceKeep)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case held.Done && held.Value == nil:
		return json.RawMessage("null"), nil
	case held.Done:
		return held.Value, nil
	case !held.Mine:
		return nil, &snoozeError{delay: onceBusyDelay, cause: fmt.Errorf("once %q: %w", key, ErrBusy)}
	}

	inside, end := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		e.renewOnce(inside, end, key, sent)
	}()
	done := false
	defer func() {
		end(nil)
		<-renewed
		if !done { // an error, a panic, or Goexit: nothing was done, so the next may try at once
			after, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.runs.lease/3)
			defer cancel()
			if err := e.store.AbandonOnce(after, key, e.public.ExecutionID); err != nil {
				e.log.warn("key of Once cannot be given back, its lease will end", "err", err)
			}
		}
	}()
	value, err := fn(inside)
	if err != nil {
		return nil, err
	}
	if len(value) > task.MaxResult {
		return nil, NonRetryable(fmt.Errorf("once: the value is %d bytes of JSON; at most %d are stored", len(value), task.MaxResult))
	}
	done = true // what was done must be remembered, also when the context has ended meanwhile
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.runs.lease/3)
	defer cancel()
	err = tries(after, func(ctx context.Context) error {
		return e.store.CompleteOnce(ctx, key, e.public.ExecutionID, value, OnceKeep)
	})
	return nil, err
}

// renewOnce extends the reservation until ctx ends. When it cannot, it ends fn before another execution may begin it.
func (e *execution) renewOnce(ctx context.Context, end context.CancelCauseFunc, key string, confirmed time.Time) {
	lease := e.runs.lease
	wait := lease / 3
	for pause(ctx, wait) {
		sent := time.Now()
		call, cancel := context.WithTimeout(ctx, lease/3)
		held, err := e.store.BeginOnce(call, key, e.public.ExecutionID, lease, OnceKeep)
		cancel()
		if err == nil && held.Mine {
			confirmed, wait = sent, lease/3
			continue
		}
		wait = lease / 20
		if err == nil || time.Since(confirmed) >= lease-lease/5-wait {
			end(ErrLeaseLost)
			return
		}
	}
}

// tries calls fn a few times: a moment without the database should not cost the attempt.
func tries(ctx context.Context, fn func(context.Context) error) error {
	for n := 1; ; n++ {
		err := fn(ctx)
		if err == nil || n == onceTries || errors.Is(err, task.ErrLeaseLost) || !pause(ctx, backoff(n, onceTryFirst, onceTryMost)) {
			if errors.Is(err, task.ErrLeaseLost) {
				return fmt.Errorf("%w: %w", ErrLeaseLost, err)
			}
			return err
		}
	}
}
