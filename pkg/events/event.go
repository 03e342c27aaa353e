package events

import "encoding/json"

// MaxEventResult is how many bytes of a result travel in an event; a larger one is left out and ResultSize tells its size.
const MaxEventResult = 64 << 10

// Event is the body of ax.event.<type>.<state>: one change of one task. Seq rises by one with each change of a task, so a
// subscriber that ignores seq <= the last it saw gets them in order.
type Event struct {
	ID          string            `json:"id"`
	Type        string            `json:"type"`
	Seq         int64             `json:"seq"`
	From        string            `json:"from,omitempty"`
	State       string            `json:"state"`
	Reason      string            `json:"reason"`
	Attempt     int               `json:"attempt"`
	ExecutionID string            `json:"executionId,omitempty"`
	At          string            `json:"at"` // RFC 3339 with milliseconds, the database's time
	By          string            `json:"by"`
	ScheduledAt string            `json:"scheduledAt,omitempty"` // of a pending or waiting task
	Error       *EventError       `json:"error,omitempty"`
	Result      json.RawMessage   `json:"result,omitempty"`
	ResultSize  int               `json:"resultSize,omitempty"`
	BizKey      string            `json:"bizKey,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	WorkflowID  string            `json:"workflowId,omitempty"`
	Gap         *Gap              `json:"gap,omitempty"` // set on a gap event only
}

// EventError is the error of a failed attempt.
type EventError struct {
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
	Cause   string `json:"cause,omitempty"`
}

// Gap says that changes FromSeq to ToSeq of a task could not be rebuilt: its kept history no longer reaches back so far.
type Gap struct {
	FromSeq int64 `json:"fromSeq"`
	ToSeq   int64 `json:"toSeq"`
}
