package events

import "encoding/json"

// Submit is the body of a submission, published on ax.submit.<type> or sent to ax.api.submit. Pointers tell an absent
// field from a zero one. Durations are Go ("90s", "1h30m") or ISO 8601 ("PT90S") strings with a unit, times RFC 3339 with
// a zone.
type Submit struct {
	ID             string            `json:"id,omitempty"`
	Payload        json.RawMessage   `json:"payload,omitempty"`
	Priority       *int              `json:"priority,omitempty" allowed:"a whole number from 0 (most urgent) to 9"`
	ScheduledAt    *string           `json:"scheduledAt,omitempty" allowed:"a time as a string with a zone, such as \"2026-01-02T15:04:05Z\""`
	Delay          *string           `json:"delay,omitempty" allowed:"a duration as a string with a unit, such as \"90s\" or \"PT90S\""`
	ExpiresAt      *string           `json:"expiresAt,omitempty" allowed:"a time as a string with a zone, such as \"2026-01-02T15:04:05Z\""`
	Timeout        *string           `json:"timeout,omitempty" allowed:"a duration as a string with a unit, such as \"90s\" or \"PT90S\""`
	MaxAttempts    *int              `json:"maxAttempts,omitempty"`
	MaxLosses      *int              `json:"maxLosses,omitempty"`
	Retry          *Retry            `json:"retry,omitempty"`
	BizKey         string            `json:"bizKey,omitempty"`
	Unique         *Unique           `json:"unique,omitempty"`
	DependsOn      []string          `json:"dependsOn,omitempty"`
	Condition      string            `json:"condition,omitempty"`
	WaitFor        []string          `json:"waitFor,omitempty"`
	ConcurrencyKey string            `json:"concurrencyKey,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	OnExhausted    string            `json:"onExhausted,omitempty"`
}

// Retry is the retry policy of a submission; absent members take the default.
type Retry struct {
	Base   *string  `json:"base,omitempty" allowed:"a duration as a string with a unit, such as \"90s\" or \"PT90S\""`
	Factor *float64 `json:"factor,omitempty"`
	Max    *string  `json:"max,omitempty" allowed:"a duration as a string with a unit, such as \"90s\" or \"PT90S\""`
	Jitter *float64 `json:"jitter,omitempty"`
}

// Unique asks that at most one task of the type holds a key. Scope says for how long: "active" (until the task has ended; the default),
// "duration" (for the time in For, from the submission), or "forever". OnConflict says what becomes of a submission whose key is held:
// "reject" (refused with code unique_held, which names the holder; the default), "keep" (answered with the holder's id), "replace" (it
// takes the place of a holder that does not run), or "debounce" (replace, and the start is put off by the delay of each submission, at
// most MaxWait after the first; ten delays when absent).
type Unique struct {
	Key        string  `json:"key"`
	Scope      string  `json:"scope,omitempty"`
	For        *string `json:"for,omitempty" allowed:"a duration as a string with a unit, such as \"90s\" or \"PT90S\""`
	OnConflict string  `json:"onConflict,omitempty"`
	MaxWait    *string `json:"maxWait,omitempty" allowed:"a duration as a string with a unit, such as \"90s\" or \"PT90S\""`
}

// Answer tells the sender of a submission what became of it: the reply of ax.api.submit, and what is sent to Ax-Reply-To.
type Answer struct {
	ID        string `json:"id,omitempty"`
	Accepted  bool   `json:"accepted"`
	Duplicate bool   `json:"duplicate,omitempty"` // the same submission had been accepted before, or ID holds its unique key
	Error     *Error `json:"error,omitempty"`
}

// Error codes, stable for programs. The sentence beside a code may change.
const (
	CodeInvalid     = "invalid"     // a field is refused, or the whole body; Field, Value and Allowed say which and why
	CodeIDConflict  = "id_conflict" // the id belongs to another submission
	CodeUniqueHeld  = "unique_held" // another task, Holder, has the unique key
	CodeNotFound    = "not_found"   // no such task
	CodeFinished    = "finished"    // the task is terminal
	CodeTooLarge    = "too_large"   // the message is over the limit
	CodeUnsupported = "unsupported" // this installation cannot do it
	CodeUnavailable = "unavailable" // try again: the database or the bus did not answer
	CodeInternal    = "internal"    // a fault of ax
)

// Error is a refusal: a stable code, the field it is about, and a sentence with a next step.
type Error struct {
	Code    string `json:"code"`
	Field   string `json:"field,omitempty"`
	Value   string `json:"value,omitempty"`
	Allowed string `json:"allowed,omitempty"`
	Holder  string `json:"holder,omitempty"` // id of the task in the way
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Status is the HTTP status that goes with the code: the Nats-Service-Error-Code of a refused request.
func (e *Error) Status() int {
	switch e.Code {
	case CodeInvalid:
		return 400
	case CodeNotFound:
		return 404
	case CodeIDConflict, CodeUniqueHeld, CodeFinished:
		return 409
	case CodeTooLarge:
		return 413
	case CodeUnsupported:
		return 501
	case CodeUnavailable:
		return 503
	default:
		return 500
	}
}

// DeadSubmit is the body of ax.dead.submit: a submission that was refused, and why.
type DeadSubmit struct {
	Subject  string `json:"subject"`
	Sequence uint64 `json:"sequence"` // in AX_SUBMIT
	At       string `json:"at"`
	Error    Error  `json:"error"`
	Body     []byte `json:"body"`           // as published, base64 in JSON; its beginning if Size is set
	Size     int    `json:"size,omitempty"` // of the whole body, in bytes, where only its beginning fits
}
