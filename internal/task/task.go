package task

import (
	"encoding/json"
	"time"
)

// What happens to a task whose attempts are used up.
const (
	DeadLetter = "deadletter" // kept as a dead letter until a person looks at it
	Ignore     = "ignore"     // just failed
)

// Task is one unit of work and its whole history. Times are the database's, in UTC, to the millisecond.
type Task struct {
	ID          string
	Type        string
	State       State
	Priority    int // 0 is the most urgent
	Channel     string
	ScheduledAt time.Time // not started before
	CreatedAt   time.Time
	Delay       time.Duration // what the start was asked for as, from the insert on; zero: as a time, or at once
	StartedAt   time.Time     // of the newest attempt
	FinishedAt  time.Time     // zero until terminal

	Attempts    int // executions started
	Failures    int // errors, panics and timeouts that a worker reported; charged to MaxAttempts
	Losses      int // executions that the reaper ended; charged to MaxLosses
	MaxAttempts int
	MaxLosses   int // 0: at most once
	Timeout     time.Duration
	Retry       RetryPolicy
	OnExhausted string

	DeadlineAt time.Time // start + timeout + grace: the reaper ends the attempt then
	ExpiresAt  time.Time // not started after; zero: never expires
	CheckAt    time.Time // when the reaper next looks at it

	Payload   json.RawMessage // as submitted, byte for byte in value and number text; nil: none
	Result    json.RawMessage // of the attempt that succeeded
	LastError *Error
	Progress  json.RawMessage // what the handler last reported

	WorkerID          string
	Claim             string // token of the batch under which it is or was owned
	LeaseUntil        time.Time
	CancelRequestedAt time.Time

	BizKey         string
	UniqueKey      string
	Unique         *Unique // of a new task whose UniqueKey is set; not stored
	Labels         map[string]string
	ConcurrencyKey string
	WorkflowID     string
	RerunOf        string
	Source         string // door it came through: nats, api, tx, cron; of a re-run with who asked, api/<who>
	Traceparent    string

	DependsOn []string
	Condition string
	WaitFor   []string
	WaitingOn []string
	Held      bool

	// FixedID is not stored. It says that this id may have been stored before (chosen by the caller, redelivered, cron, re-run),
	// so that an insert must ask the archive as well.
	FixedID    bool
	SubmitHash string // "v1:" + hash of the submission as sent; tells a repeat from a conflict
	Echo       string // JSON of bizKey, labels and workflowId, repeated in every event
	Seq        int64  // number of the newest change
	Change     string // the newest change as one string, see [Change]
	History    []Entry
}

// Entry is one recorded change of a task.
type Entry struct {
	Seq     int64
	At      time.Time
	From    State
	To      State
	Reason  Reason
	By      string
	Attempt int
	Claim   string
	Error   *Error
}

// Error is what a failed attempt left behind. It is stored as one JSON string of at most [MaxErrorText] bytes.
type Error struct {
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`  // chosen by the handler, for filters and metrics
	Cause   Reason `json:"cause,omitempty"` // error, panic, timeout, lease_expired or rejected_result
	Stack   string `json:"stack,omitempty"` // of a panic
	// Attempt that left it. It makes each attempt's error another text, so that a change event shows it even when the message
	// is the same as the last time.
	Attempt int `json:"attempt,omitempty"`
}

// ExecutionID names one attempt for ever: "<claim>:<taskId>". It is empty for a task that was never claimed.
func (t *Task) ExecutionID() string { return ExecutionID(t.Claim, t.ID) }

// ExecutionID joins a claim token and a task id; empty when there is no claim.
func ExecutionID(claim, id string) string {
	if claim == "" {
		return ""
	}
	return claim + ":" + id
}

// Lane returns the lane of the task's priority.
func (t *Task) Lane() Lane { return LaneOf(t.Priority) }
