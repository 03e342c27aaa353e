package task

// Transition is one legal move of a task. From is empty for the insert. Mover says whose write it is.
type Transition struct {
	From   State
	To     State
	Reason Reason
	Mover  string
}

// Movers, as named in [Transition] and in the documents' "by" field prefix.
const (
	MoverSubmitter  = "submitter"
	MoverWorker     = "worker"
	MoverReaper     = "reaper"
	MoverDispatcher = "dispatcher"
	MoverOperator   = "operator"
)

// Transitions is the whole lifecycle. A write that changes a task's state is legal only if it stands here, and each of
// those writes is a compare-and-set on From. Docs and tests are made from this table.
var Transitions = []Transition{
	{"", Pending, ReasonSubmitted, MoverSubmitter},
	{"", Waiting, ReasonSubmitted, MoverSubmitter},

	{Waiting, Pending, ReasonDependenciesMet, MoverDispatcher},
	{Waiting, Pending, ReasonGateOpen, MoverDispatcher},
	{Waiting, Pending, ReasonOperator, MoverOperator},
	{Waiting, Cancelled, ReasonCancelled, MoverOperator},
	{Waiting, Cancelled, ReasonReplaced, MoverSubmitter},
	{Waiting, Cancelled, ReasonParentFailed, MoverDispatcher},
	{Waiting, Cancelled, ReasonConditionUnmet, MoverDispatcher},
	{Waiting, Failed, ReasonExpired, MoverReaper},

	{Pending, Running, ReasonClaimed, MoverWorker},
	{Pending, Waiting, ReasonHeld, MoverOperator},
	{Pending, Cancelled, ReasonCancelled, MoverOperator},
	{Pending, Cancelled, ReasonReplaced, MoverSubmitter},
	{Pending, Failed, ReasonExpired, MoverReaper},

	{Running, Success, ReasonSucceeded, MoverWorker},
	{Running, Pending, ReasonRetry, MoverWorker},
	{Running, Pending, ReasonSnoozed, MoverWorker},
	{Running, Pending, ReasonReleased, MoverWorker},
	{Running, Failed, ReasonExhausted, MoverWorker},
	{Running, Failed, ReasonNonRetryable, MoverWorker},
	{Running, Failed, ReasonRejectedResult, MoverWorker},
	{Running, Cancelled, ReasonCancelled, MoverWorker},

	{Running, Pending, ReasonLeaseExpired, MoverReaper},
	{Running, Pending, ReasonTimeout, MoverReaper},
	{Running, Failed, ReasonWorkerLost, MoverReaper},
	{Running, Cancelled, ReasonCancelled, MoverReaper},
}

// Stays lists the reasons of control writes that change a task without changing its state.
var Stays = map[State][]Reason{
	Waiting: {ReasonRescheduled, ReasonHeld, ReasonDependenciesMet, ReasonGateOpen, ReasonMoved},
	Pending: {ReasonRescheduled, ReasonMoved},
	Running: {ReasonCancelled}, // a cancel request: the state follows with the worker's report or the lease's end
}

// Allowed reports whether the move stands in [Transitions], or is a control write of [Stays].
func Allowed(from, to State, reason Reason) bool {
	if from == to {
		for _, r := range Stays[from] {
			if r == reason {
				return true
			}
		}
		return false
	}
	for _, t := range Transitions {
		if t.From == from && t.To == to && t.Reason == reason {
			return true
		}
	}
	return false
}
