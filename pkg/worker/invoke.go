package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// crash is how a handler ended without returning.
type crash struct {
	message string
	stack   string
}

// end is what a handler came to.
type ending struct {
	result json.RawMessage
	err    error
	reject string // why the result cannot be stored
	crash  *crash
}

// goexit is how a handler ends that calls runtime.Goexit: its goroutine ends, and only deferred calls still run.
var goexit = ending{crash: &crash{message: "the handler called runtime.Goexit"}}

// invoke calls the handler. A panic in it, in a middleware, or in what encodes the result is caught.
func (k *kind) invoke(ctx context.Context, t Task) (end ending) {
	defer func() {
		if v := recover(); v != nil { // a panic with nil arrives as a *runtime.PanicNilError
			end = ending{crash: &crash{message: fmt.Sprintf("panic: %v", v), stack: stackOf(debug.Stack())}}
		}
	}()
	value, err := k.handler(ctx, t)
	if err != nil {
		return ending{err: err}
	}
	result, err := encode(value)
	if err != nil {
		return ending{reject: err.Error()}
	}
	return ending{result: result}
}

// stackOf leaves out the frames between the panic and the place that caught it.
func stackOf(stack []byte) string {
	s := string(stack)
	if i := strings.LastIndex(s, "\npanic("); i >= 0 {
		s = s[i+1:]
	}
	return s
}

// outcome decides what is reported about an attempt whose handler has returned. cause is why its context had ended, nil if it
// had not. It never fails: an error whose methods panic is a panic of the handler.
func (e *execution) outcome(end ending, cause error) (o task.Outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = e.report(task.FailedAttempt, &task.Error{Cause: task.ReasonPanic, Message: safeText(fmt.Sprintf("the handler's error panicked: %v", v))})
		}
	}()
	// Whoever asked for a cancel is told that it took place, whatever the handler made of it.
	if errors.Is(cause, ErrCancelled) {
		return e.report(task.CancelledByRequest, nil)
	}
	if c := end.crash; c != nil {
		return e.report(task.FailedAttempt, &task.Error{Cause: task.ReasonPanic, Message: safeText(c.message), Stack: safeText(c.stack)})
	}
	if end.reject != "" {
		return e.report(task.RejectedResult, &task.Error{Cause: task.ReasonRejectedResult, Message: safeText(end.reject)})
	}
	if end.err == nil {
		if len(end.result) > task.MaxResult {
			return e.report(task.RejectedResult, &task.Error{Cause: task.ReasonRejectedResult, Message: tooLarge(end.result).Error()})
		}
		o = e.report(task.Succeeded, nil)
		o.Result = end.result
		return o
	}
	return e.failure(end.err, cause)
}

// failure decides about an error that a handler returned.
func (e *execution) failure(err, cause error) task.Outcome {
	failed := &task.Error{Cause: task.ReasonError, Message: safeText(fmt.Sprint(err))}
	if coded, ok := errors.AsType[*codedError](err); ok {
		failed.Code = coded.code
	}
	interrupted := errors.Is(cause, ErrShutdown)
	if interrupted && errors.Is(err, context.Canceled) {
		return e.report(task.Released, nil)
	}
	if _, ok := errors.AsType[*nonRetryableError](err); ok {
		return e.report(task.FailedForGood, failed)
	}
	if snooze, ok := errors.AsType[*snoozeError](err); ok {
		o := e.report(task.Snoozed, nil)
		o.Delay = snooze.delay
		return o
	}
	later, ok := errors.AsType[*retryAfterError](err)
	if interrupted && !ok {
		return e.report(task.Released, nil) // whatever the error is, the shutdown may be what it comes from
	}
	if errors.Is(cause, ErrTimeout) {
		failed.Cause = task.ReasonTimeout
	}
	o := e.report(task.FailedAttempt, failed)
	if ok {
		o.Delay = later.delay
	}
	return o
}

// timeout is what is reported at the moment an attempt's time is over.
func (e *execution) timeout() task.Outcome {
	return e.report(task.FailedAttempt, &task.Error{Cause: task.ReasonTimeout,
		Message: fmt.Sprintf("the handler did not return within the timeout of %v", e.task.Timeout.Round(time.Millisecond))})
}
