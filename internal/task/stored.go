package task

import (
	"encoding/json"
	"time"
)

// Lease is a store's answer to a request for a lock. The database's clock decides who holds it.
type Lease struct {
	Name  string
	Owner string // who holds it now
	Held  bool   // the one who asked holds it
	Epoch int64  // rises by one with each acquisition; writes of a former leader are refused by it
	Until time.Time
	Note  string // what the last leader stored for its successor, see the reaper; empty: nothing
}

// DeadTask is a dead letter: a task that ended failed and waits for a person. It is derived from the task's last change, never written
// by the one who failed it, so that no crash can lose it.
type DeadTask struct {
	ID         string // of the task
	Type       string
	Reason     Reason // exhausted, non_retryable, worker_lost, rejected_result or expired
	At         time.Time
	Attempts   int
	Failures   int
	Losses     int
	LastError  *Error
	Errors     []Entry // the kept changes that carry an error, oldest first: one for each failed attempt
	BizKey     string
	Labels     map[string]string
	WorkflowID string
}

// What a schedule does about slots that fell due while nothing could fire them, and about a slot whose predecessor's task
// has not ended.
const (
	MisfireOnce  = "once"  // only the newest missed slot fires
	MisfireSkip  = "skip"  // none fires that is more than SkipAfter late
	MisfireAll   = "all"   // each fires, the oldest first, within CatchUp and CatchUpMax
	OverlapAllow = "allow" // it fires all the same
)

// SkipAfter is how late a slot may fire under MisfireSkip: longer than another leader needs to take over, so that a change of
// leaders alone skips nothing.
const SkipAfter = time.Minute

// What MisfireAll goes back to when a schedule does not say.
const (
	DefaultCatchUp    = 24 * time.Hour
	DefaultCatchUpMax = 100
)

// SlotPrefix begins the ids of tasks that schedules make. Callers may not choose such ids.
const SlotPrefix = "cron:"

// SlotID is the id of the task that a slot of a schedule makes.
func SlotID(schedule string, slot time.Time) string {
	return SlotPrefix + schedule + ":" + slot.UTC().Format(time.RFC3339)
}

// Schedule is a stored cron entry: when it fires, and the task that each fire time makes.
type Schedule struct {
	Name    string // 1 to 64 characters of a-z 0-9 _ -
	Cron    string // five or six fields, @hourly..., or "@every 90s"
	Zone    string // IANA name; empty: UTC
	Misfire string
	CatchUp time.Duration // of MisfireAll: slots that are older do not fire any more
	// CatchUpMax is how many missed slots MisfireAll fires, the newest.
	CatchUpMax int
	Overlap    string
	TaskType   string
	Template   json.RawMessage // the submission each slot makes a task of, without id and times
	Anchor     time.Time       // slots of "@every" are Anchor + k x interval; written once
	NextAt     time.Time       // the slot that fires next; zero while broken
	LastAt     time.Time       // the slot that fired last; zero: none yet
	Broken     string          // why it cannot fire; empty: it can
	Revision   int64           // rises with each edit, so that a write based on an older reading is refused
}

// Advance moves a schedule's position after its slot was made a task. It is refused when the schedule was edited or moved
// since it was read.
type Advance struct {
	Name     string
	Revision int64     // as read
	From     time.Time // NextAt as read
	To       time.Time // the next slot; zero: there is none, or it is broken
	LastAt   time.Time // the slot that fired; zero keeps what is stored
	Broken   string    // why it cannot fire; empty: it can
}

// WorkerInfo is a worker process as it registered itself. It is removed when the worker stops, or when it has not beaten for
// long. It helps people and the dispatcher; no ownership of a task rests on it.
type WorkerInfo struct {
	ID        string
	Host      string
	PID       int
	Channel   string
	Types     []string
	Slots     int // executions it runs at once
	Version   string
	StartedAt time.Time
	SeenAt    time.Time // its last beat, by the database's clock
}

// SeenWithin is how long ago a worker or a service may have beaten to count as there. Each beats every five seconds.
const SeenWithin = 20 * time.Second

// Services are the names of ax's services.
var Services = []string{"submitter", "dispatcher", "reaper", "notifier", "cron"}

// ServiceInfo is a process of a service as it registered itself. It is removed when the process stops, or an hour after its last
// beat. It helps people; nothing is decided by it.
type ServiceInfo struct {
	ID         string
	Service    string // of [Services]
	Host       string
	PID        int
	Version    string
	Leads      bool     // it does the work that one process does at a time
	Conditions []string // what is not as it should be, a phrase each
	StartedAt  time.Time
	SeenAt     time.Time // its last beat, by the database's clock
}

// Once is the store's answer to an execution that asks for the right to do something once.
type Once struct {
	Done  bool            // it was done, here or elsewhere; Value is what came of it
	Mine  bool            // the one who asked may do it now; neither Done nor Mine: another execution is at it
	Value json.RawMessage // nil: none
}
