package audit

// Kind names the invariant that is broken.
type Kind string

const (
	Transition       Kind = "transition"         // a change that the table of transitions does not have, or a state that no change led to
	Seq              Kind = "seq"                // the numbers of the kept changes have a gap or a repeat
	Overlap          Kind = "overlap"            // two executions valid at the same time, as far as the history shows
	Failures         Kind = "failures"           // more than maxAttempts
	Losses           Kind = "losses"             // more than maxLosses + 1
	Lease            Kind = "lease"              // it runs without a lease, so that nobody would notice its worker's death
	Owner            Kind = "owner"              // it has a lease and no owner
	Leftover         Kind = "leftover"           // it has ended and keeps what belongs to a running task, or the reverse
	Unique           Kind = "unique"             // two live tasks under one unique key
	Archived         Kind = "archived"           // it is in the archive and has not ended
	Waiting          Kind = "waiting"            // it waits, and all it waits for has ended
	Overdue          Kind = "overdue"            // it is due for long and nobody takes it, though workers of its type have free slots
	DeadLetter       Kind = "dead_letter"        // it failed and has no dead letter
	DeadLetterOrphan Kind = "dead_letter_orphan" // a dead letter without a failed task
	EventMissing     Kind = "event_missing"      // a change was never published
	EventOrder       Kind = "event_order"        // a change was published after a later one of the same task
	EventContent     Kind = "event_content"      // an event says other than the history, or tells of a change that did not happen
	SlotTwice        Kind = "slot_twice"         // a schedule's slot became two tasks
	SlotSkipped      Kind = "slot_skipped"       // a schedule passes over a slot that its policy fires
)

// Kinds lists all of them.
var Kinds = []Kind{Transition, Seq, Overlap, Failures, Losses, Lease, Owner, Leftover, Unique, Archived, Waiting, Overdue, DeadLetter, DeadLetterOrphan,
	EventMissing, EventOrder, EventContent, SlotTwice, SlotSkipped}

// Violation is one broken invariant.
type Violation struct {
	Kind     Kind   `json:"kind"`
	Task     string `json:"id,omitempty"` // of the task
	Type     string `json:"type,omitempty"`
	Schedule string `json:"schedule,omitempty"`
	Seq      int64  `json:"seq,omitempty"` // of the change, where one change is meant
	Text     string `json:"text"`          // what was found, one sentence
}
