package task

import "time"

// UniqueScope says for how long a unique key is held by the task that reserved it.
type UniqueScope string

const (
	// ScopeActive: until the task has ended.
	ScopeActive UniqueScope = "active"
	// ScopeDuration: for a time from the submission, whatever becomes of the task.
	ScopeDuration UniqueScope = "duration"
	// ScopeForever: no other task ever gets the key.
	ScopeForever UniqueScope = "forever"
)

// OnConflict says what a submission does whose unique key is held.
type OnConflict string

const (
	// ConflictReject: it is refused; the answer names the holder.
	ConflictReject OnConflict = "reject"
	// ConflictKeep: it is answered as if it had been submitted before, with the id of the holder.
	ConflictKeep OnConflict = "keep"
	// ConflictReplace: a holder that has not started, or waits for its next attempt, is cancelled (reason replaced), and the new task
	// takes its place.
	ConflictReplace OnConflict = "replace"
	// ConflictDebounce: as replace, and each submission puts the start off by its delay, though not beyond MaxWait after the first.
	ConflictDebounce OnConflict = "debounce"
)

// Bounds and defaults of unique keys.
const (
	MaxUniqueKey = 256 // bytes
	MaxUniqueFor = 365 * 24 * time.Hour
	// DebounceWaits is how many delays a debounced task waits at most, when its submission does not say.
	DebounceWaits = 10
)

// Unique is the wish of a new task to be the only one under its key. It is not stored with the task but for the key itself.
type Unique struct {
	Scope      UniqueScope
	For        time.Duration // how long, with ScopeDuration
	OnConflict OnConflict
	MaxWait    time.Duration // from the first submission to the latest start, with ConflictDebounce
	// At is when it was submitted. Of two submissions that replace each other the later one wins, in whatever order they arrive.
	At time.Time

	// Holder is set by an insert that answers Held: the task that has the key.
	Holder string
	// Newer is set beside it when the holder has replaced this submission, which arrived late: then it is not refused.
	Newer bool
}
