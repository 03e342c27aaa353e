package task

import (
	"encoding/json"
	"errors"
	"time"
)

// Answers of the store that callers act on.
var (
	// ErrNotFound: no task has this id, neither live nor archived.
	ErrNotFound = errors.New("task not found")
	// ErrIDConflict: the id belongs to a task with another submission.
	ErrIDConflict = errors.New("id belongs to another submission")
	// ErrLeaseLost: the execution is no longer valid; its report changed nothing.
	ErrLeaseLost = errors.New("lease lost")
	// ErrAlreadyFinished: the task is terminal, so it cannot be cancelled or changed.
	ErrAlreadyFinished = errors.New("task already finished")
	// ErrNotLeader: the lock's epoch has moved on; the write of a former leader was refused.
	ErrNotLeader = errors.New("no longer the leader")
	// ErrHistoryLost: the change stream cannot resume from the token; the caller must rescan.
	ErrHistoryLost = errors.New("change stream history lost")
	// ErrNoChangeStream: the server has no change streams (standalone); run in sweep mode.
	ErrNoChangeStream = errors.New("the database has no change streams")
	// ErrUnknownOutcome: the database did not say whether the write took place. Look before writing again.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrClock: server time is not known well enough; nothing that depends on it may be written.
	ErrClock = errors.New("database time is not known well enough")
)

// MaxProgress is how many bytes of JSON a handler may report as its progress.
const MaxProgress = 8 << 10

// Candidate is a pending task as the dispatcher and idle workers see it: enough to signal or claim it.
type Candidate struct {
	ID          string
	Type        string
	Channel     string
	Priority    int
	ScheduledAt time.Time
	Seq         int64
	Attempts    int
}

// Window asks for pending tasks of one type, channel and priority with From <= scheduledAt < To, in order of scheduledAt
// then id. The bounds keep a read small on a deep backlog whatever the server does with a limit.
type Window struct {
	Type     string
	Channel  string
	Priority int
	From     time.Time // zero: from the beginning
	To       time.Time
	Limit    int
}

// Observed is one change seen on the change stream or rebuilt from history.
type Observed struct {
	ID     string
	Change Change
	Result json.RawMessage // set when the change carries one
	Error  *Error          // set when the change carries one
}

// Owned names one execution: a task and the claim under which it is held.
type Owned struct {
	ID    string
	Claim string
}

// ClaimRequest asks for ownership of tasks by id under one fresh claim token.
type ClaimRequest struct {
	IDs    []string
	Claim  string // a fresh token, never used before
	Worker string
	Lease  time.Duration
}

// HeartbeatRequest extends the leases of all tasks of one worker.
type HeartbeatRequest struct {
	Worker string
	Owned  []Owned
	Lease  time.Duration
	// InTime says that each of them has more than a lease left until its timeout, by the worker's monotonic clock. A deadline
	// that is near or past by the database's clock then shows only that this clock moved, and is put off.
	InTime bool
}

// HeartbeatResult tells what became of the executions named in the request.
type HeartbeatResult struct {
	Lost      []Owned // no longer ours: the handler must stop
	Cancelled []Owned // ours, and somebody asked for a cancel
}

// Outcome is a worker's report of one execution.
type Outcome struct {
	Owned
	Worker string
	Kind   OutcomeKind
	Result json.RawMessage // Succeeded only; nil: none
	Error  *Error          // failures only; its Cause is error, panic, timeout or rejected_result
	Delay  time.Duration   // retry-after, snooze; 0 with Failed: by the task's retry policy
	Random float64         // [0,1), chooses the retry jitter
	Task   *Task           // as claimed: its policy decides between retry and exhausted
}

// OutcomeKind is the kind of a worker's report.
type OutcomeKind int

const (
	Succeeded OutcomeKind = iota + 1
	// FailedAttempt is charged as a failure; the task retries or is exhausted.
	FailedAttempt
	// FailedForGood is a failure that no retry can help.
	FailedForGood
	// RejectedResult is a success whose result is larger than the limit.
	RejectedResult
	// Released hands the task back without a charge.
	Released
	// Snoozed asks for another call after Delay without a charge.
	Snoozed
	// CancelledByRequest reports that the handler stopped because of a cancel.
	CancelledByRequest
)

// Decide returns the state, reason and delay that an outcome leads to, given the task as claimed. A pending result is
// turned into cancelled by the store when a cancel was asked for meanwhile.
func (o *Outcome) Decide() (to State, reason Reason, delay time.Duration) {
	switch o.Kind {
	case Succeeded:
		return Success, ReasonSucceeded, 0
	case RejectedResult:
		return Failed, ReasonRejectedResult, 0
	case FailedForGood:
		return Failed, ReasonNonRetryable, 0
	case CancelledByRequest:
		return Cancelled, ReasonCancelled, 0
	case Released:
		return Pending, ReasonReleased, 0
	case Snoozed:
		return Pending, ReasonSnoozed, max(o.Delay, 0)
	default:
		failures := o.Task.Failures + 1
		if failures >= o.Task.MaxAttempts {
			return Failed, ReasonExhausted, 0
		}
		if o.Delay > 0 {
			return Pending, ReasonRetry, o.Delay
		}
		return Pending, ReasonRetry, o.Task.Retry.Delay(failures, o.Random)
	}
}

// InsertStatus is what became of one task of an insert.
type InsertStatus int

const (
	Inserted InsertStatus = iota + 1
	// Duplicate: the same submission was accepted before under this id. Nothing changed.
	Duplicate
	// Conflict: another submission has this id. Nothing changed.
	Conflict
	// Held: another task has the unique key, see Unique.Holder. Nothing changed.
	Held
	// NoTransactions: the server is a standalone one, which cannot keep keys unique. Nothing changed.
	NoTransactions
)

// CancelStatus is the answer to a cancel.
type CancelStatus string

const (
	CancelDone     CancelStatus = "cancelled"  // it will never run (again)
	CancelAsked    CancelStatus = "cancelling" // it runs; its worker was told, the end follows within 30 s
	CancelTooLate  CancelStatus = "finished"   // it had ended; nothing changed
	CancelNotFound CancelStatus = "not_found"
)
