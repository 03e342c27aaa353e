package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/ax-scheduler/ax/internal/task"
)

// Handler runs one task. The value it returns becomes the task's result as JSON; a [json.RawMessage] is taken as it is, nil
// means no result.
type Handler func(ctx context.Context, t Task) (any, error)

// A Wrapper wraps a handler: it sees the task before the handler does and the outcome after it.
type Wrapper func(next Handler) Handler

// HandlerOption changes how the tasks of one type are handled.
type HandlerOption func(*registration)

// registration is a task type as the user announced it.
type registration struct {
	name        string
	handler     Handler
	concurrency int // 0: as many as there are slots
	middleware  []Wrapper
}

// Concurrency limits how many tasks of the type run at the same time in this worker: at least 1. Without it, all slots may
// be taken by one type.
func Concurrency(n int) HandlerOption {
	return func(r *registration) {
		r.concurrency = n
		if n < 1 {
			r.concurrency = -1 // refused at registration; 0 would mean no limit
		}
	}
}

// Middleware wraps the handlers of one type, the first one outermost, inside of what [Worker.Use] added.
func Middleware(m ...Wrapper) HandlerOption {
	return func(r *registration) { r.middleware = append(r.middleware, m...) }
}

// Handle registers fn for a task type. The payload is decoded into Args as encoding/json does it; a task without a payload
// gives the zero value; a payload that cannot be decoded ends the task as failed, because no retry can help. A Result of
// type struct{} means that there is none. Mistakes (an illegal or repeated type, a concurrency below 1) are returned by
// [Worker.Run], which does not start then. Handle must not be called after Run.
func Handle[Args, Result any](w *Worker, taskType string, fn func(ctx context.Context, args Args) (Result, error), opts ...HandlerOption) {
	if fn == nil {
		w.refuse(fmt.Errorf("task type %q: the handler is nil", taskType))
		return
	}
	HandleFunc(w, taskType, func(ctx context.Context, t Task) (any, error) {
		var args Args
		if len(t.Payload) > 0 {
			if err := json.Unmarshal(t.Payload, &args); err != nil {
				return nil, ErrorCode("bad_payload", NonRetryable(fmt.Errorf("the payload cannot be decoded into %T: %w", args, err)))
			}
		}
		result, err := fn(ctx, args)
		if err != nil {
			return nil, err
		}
		if _, none := any(result).(struct{}); none {
			return nil, nil
		}
		return result, nil
	}, opts...)
}

// HandleFunc registers fn for a task type, with the payload as it was submitted in [Task.Payload].
func HandleFunc(w *Worker, taskType string, fn Handler, opts ...HandlerOption) {
	r := registration{name: taskType, handler: fn}
	for _, opt := range opts {
		opt(&r)
	}
	w.register(r)
}

func (r *registration) check() error {
	switch {
	case task.ValidateType(r.name) != nil:
		return fmt.Errorf("task type: %w", task.ValidateType(r.name))
	case r.handler == nil:
		return fmt.Errorf("task type %q: the handler is nil", r.name)
	case r.concurrency < 0:
		return fmt.Errorf("task type %q: Concurrency: give a whole number of at least 1", r.name)
	}
	return nil
}

// wrapped is the handler inside of its own middleware and the worker's.
func (r *registration) wrapped(outer []Wrapper) Handler {
	h := r.handler
	for _, m := range slices.Backward(r.middleware) {
		h = m(h)
	}
	for _, m := range slices.Backward(outer) {
		h = m(h)
	}
	return h
}

func tooLarge(result []byte) error {
	return fmt.Errorf("the result is %d bytes of JSON; at most %d are stored", len(result), task.MaxResult)
}

// encode turns what a handler returned into the JSON that is stored. Nil, and what encodes to null, is no result.
func encode(v any) (json.RawMessage, error) {
	raw, isRaw := v.(json.RawMessage)
	if !isRaw {
		if v == nil {
			return nil, nil
		}
		encoded, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("the result of type %T cannot be encoded as JSON: %w", v, err)
		}
		raw = encoded
	} else if len(raw) > 0 && !json.Valid(raw) {
		return nil, fmt.Errorf("the result is a json.RawMessage that is not valid JSON")
	}
	if raw = bytes.TrimSpace(raw); len(raw) > task.MaxResult { // before it is copied: handlers may return such results side by side
		return nil, tooLarge(raw)
	}
	if !utf8.Valid(raw) { // json.Valid does not look into strings
		return nil, fmt.Errorf("the result of type %T is JSON that is not valid UTF-8", v)
	}
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	if isRaw { // the handler's, which may write into it again
		raw = bytes.Clone(raw)
	}
	return raw, nil
}
