package events

// Signal tells workers to have a look at some tasks. It carries no truth: a task is claimed in the database or not at all.
type Signal struct {
	Tasks []SignalTask `json:"tasks"`
}

// MaxSignalTasks is how many tasks one signal may carry.
const MaxSignalTasks = 64

// SignalTask names one task of a signal. At is the time it falls due, in milliseconds of the database's clock.
type SignalTask struct {
	ID      string `json:"id"`
	Seq     int64  `json:"seq"`
	Attempt int    `json:"attempt"`
	At      int64  `json:"at"`
}

// Cancel is the body of ax.control.cancel.
type Cancel struct {
	ID          string `json:"id"`
	ExecutionID string `json:"executionId"`
}
