package task

// State is where a task stands. Only the transitions in [Transitions] lead from one state to another.
type State string

const (
	// Waiting has unmet dependencies or gates, or is held by an operator. A release moves it to pending.
	Waiting State = "waiting"
	// Pending may start at ScheduledAt. A worker's claim moves it to running.
	Pending State = "pending"
	// Running is owned under a claim until LeaseUntil. Its worker finishes it; the reaper revives it when the lease ends.
	Running State = "running"
	// Success is terminal: a worker recorded the result.
	Success State = "success"
	// Failed is terminal: attempts or losses are used up, the error cannot be retried, or the task expired.
	Failed State = "failed"
	// Cancelled is terminal: somebody asked for it, or a parent's end decided it.
	Cancelled State = "cancelled"
)

// States lists every state in the order of a task's life.
var States = []State{Waiting, Pending, Running, Success, Failed, Cancelled}

// Terminal reports whether nothing ever leaves s.
func (s State) Terminal() bool { return s == Success || s == Failed || s == Cancelled }

// Valid reports whether s is one of [States].
func (s State) Valid() bool {
	for _, known := range States {
		if s == known {
			return true
		}
	}
	return false
}

// Reason says why a task changed. Timeouts, retries and losses are reasons, not states.
type Reason string

const (
	ReasonSubmitted       Reason = "submitted"        // stored for the first time
	ReasonDependenciesMet Reason = "dependencies_met" // the last parent ended as the condition asks
	ReasonGateOpen        Reason = "gate_open"        // the last gate was signalled
	ReasonHeld            Reason = "held"             // an operator holds it back
	ReasonRescheduled     Reason = "rescheduled"      // ScheduledAt or Priority was changed
	ReasonReplaced        Reason = "replaced"         // a newer submission under the same unique key took its place
	ReasonMoved           Reason = "moved"            // moved to another channel
	ReasonClaimed         Reason = "claimed"          // a worker took it
	ReasonSucceeded       Reason = "succeeded"        // the handler returned without an error
	ReasonError           Reason = "error"            // cause of a failed attempt: the handler returned an error
	ReasonPanic           Reason = "panic"            // cause of a failed attempt: the handler panicked
	ReasonTimeout         Reason = "timeout"          // cause of a failed attempt, or the reaper's end of one past its deadline
	ReasonLeaseExpired    Reason = "lease_expired"    // the owner stopped extending its lease
	ReasonWorkerLost      Reason = "worker_lost"      // losses are used up
	ReasonReleased        Reason = "released"         // the worker handed it back at shutdown or after a late claim
	ReasonSnoozed         Reason = "snoozed"          // the handler asked to be called again later
	ReasonRetry           Reason = "retry"            // an attempt failed and another one follows
	ReasonExhausted       Reason = "exhausted"        // failures reached MaxAttempts
	ReasonNonRetryable    Reason = "non_retryable"    // the handler said that no retry can help
	ReasonCancelled       Reason = "cancelled"        // somebody asked for it
	ReasonExpired         Reason = "expired"          // ExpiresAt passed before it started
	ReasonParentFailed    Reason = "parent_failed"    // a parent it needs did not succeed
	ReasonConditionUnmet  Reason = "condition_unmet"  // the parents ended otherwise than its condition asks
	ReasonRejectedResult  Reason = "rejected_result"  // the result was larger than the limit
	ReasonOperator        Reason = "operator"         // a person did it by hand
)
