package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// Task is what a handler can know about the execution it is.
type Task struct {
	ID          string
	Type        string
	Attempt     int    // 1 for the first execution; counts every execution that was started, also those that cost nothing
	Failures    int    // failed attempts before this one
	MaxAttempts int    // the task is failed for good when Failures reaches it
	ExecutionID string // names this attempt for ever: a key for calls that must not be confused with another attempt's
	Priority    int    // 0 is the most urgent, 9 the least
	Channel     string
	CreatedAt   time.Time // by the database's clock
	ScheduledAt time.Time // by the database's clock
	Deadline    time.Time // when the context ends, by this process's clock
	Timeout     time.Duration
	Payload     json.RawMessage // as submitted; nil: none
	BizKey      string
	Labels      map[string]string
	WorkflowID  string
	RerunOf     string // the task that this one repeats
	Traceparent string // W3C trace context of the submission
}

type contextKey struct{}

// TaskOf returns the task whose handler was given ctx, and false when ctx is not a handler's.
func TaskOf(ctx context.Context) (Task, bool) {
	e, ok := ctx.Value(contextKey{}).(*execution)
	if !ok {
		return Task{}, false
	}
	return e.public, true
}

func publicTask(t *task.Task, deadline time.Time) Task {
	return Task{
		ID: t.ID, Type: t.Type, Attempt: t.Attempts, Failures: t.Failures, MaxAttempts: t.MaxAttempts,
		ExecutionID: t.ExecutionID(), Priority: t.Priority, Channel: t.Channel, CreatedAt: t.CreatedAt,
		ScheduledAt: t.ScheduledAt, Deadline: deadline, Timeout: t.Timeout, Payload: t.Payload, BizKey: t.BizKey,
		Labels: t.Labels, WorkflowID: t.WorkflowID, RerunOf: t.RerunOf, Traceparent: t.Traceparent,
	}
}
