package client

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Task is a submission: what is to be done, and how.
type Task struct {
	request events.SubmitRequest
	err     error // a mistake that the request cannot express; returned by whatever submits the task
}

// Option sets one property of a task.
type Option func(*Task)

// NewTask makes a submission of a task type. The payload is encoded as JSON; a [json.RawMessage] is taken as it is, nil means
// none. Mistakes are reported by the call that submits it.
func NewTask(taskType string, payload any, opts ...Option) Task {
	t := Task{request: events.SubmitRequest{Type: taskType}}
	t.setPayload(payload)
	for _, opt := range opts {
		opt(&t)
	}
	if t.request.ID == "" {
		t.request.ID = events.NewID()
	}
	return t
}

func (t *Task) setPayload(payload any) {
	raw, given := payload.(json.RawMessage)
	switch {
	case payload == nil, given && raw == nil:
	case given && !json.Valid(raw):
		t.refuse(events.Invalid("payload", events.Shorten(string(raw)), "JSON"))
	case given:
		t.request.Payload = raw
	default:
		var err error
		if t.request.Payload, err = events.Encode(payload); err != nil {
			name := fmt.Sprintf("%T", payload)
			t.refuse(&events.Error{Code: events.CodeInvalid, Field: "payload", Value: name, Allowed: "a value that encodes as JSON",
				Message: fmt.Sprintf("field payload: a value of type %s cannot be encoded as JSON: %v", name, err)})
		}
	}
}

// refuse keeps the first mistake.
func (t *Task) refuse(err error) {
	if t.err == nil {
		t.err = err
	}
}

// TaskOf makes a submission of a body as it is sent over NATS. An empty ID is none: one is made.
func TaskOf(request events.SubmitRequest) Task {
	if request.ID == "" {
		request.ID = events.NewID()
	}
	return Task{request: request}
}

// ID is the id the task will have.
func (t Task) ID() string { return t.request.ID }

// Check refuses a task as the submitter would, with an [*events.Error] that names the field. Every call that submits a task
// checks it first. What depends on the time is left to the database's clock: a delay that ends after expiresAt passes here.
func (t Task) Check() error {
	if t.err != nil {
		return t.err
	}
	// The earliest time there can be: what is refused then is refused at any time.
	_, err := intake.Build(&t.request.Submit, intake.Origin{Type: t.request.Type, Source: intake.SourceAPI, Now: time.Unix(0, 0)})
	return err
}

// ID chooses the task's id: 1 to 128 characters of A-Z a-z 0-9 . _ : -, not beginning with cron: or ax:.
func ID(id string) Option {
	return func(t *Task) {
		if id == "" { // a variable that was not set; a made id would store a second task at each repeat
			t.refuse(intake.Refusal(task.ValidateID(id)))
		}
		t.request.ID = id
	}
}

// Priority is 0 (most urgent) to 9; default 5.
func Priority(p int) Option { return func(t *Task) { t.request.Priority = &p } }

// Delay lets the task start no sooner than this long after it is stored.
func Delay(d time.Duration) Option { return func(t *Task) { t.request.Delay = text(d) } }

// At lets the task start no sooner than a time, which is compared with the database's clock.
func At(at time.Time) Option { return func(t *Task) { t.request.ScheduledAt = moment(at) } }

// ExpiresAt fails the task (reason expired) if it has not started by then.
func ExpiresAt(at time.Time) Option {
	return func(t *Task) { t.request.ExpiresAt = moment(at) }
}

// Timeout bounds each attempt; default 30 min.
func Timeout(d time.Duration) Option { return func(t *Task) { t.request.Timeout = text(d) } }

// MaxAttempts is how often the task may fail before it is failed for good; default 3.
func MaxAttempts(n int) Option { return func(t *Task) { t.request.MaxAttempts = &n } }

// MaxLosses is how many lost workers the task survives; default 3, 0 means at most once: a handler that a stopping worker
// interrupts is then not run again either.
func MaxLosses(n int) Option { return func(t *Task) { t.request.MaxLosses = &n } }

// Retry sets the wait after failure n to min(most, base * factor^(n-1)), plus a random share of it between 0 and jitter.
func Retry(base time.Duration, factor float64, most time.Duration, jitter float64) Option {
	return func(t *Task) {
		t.request.Retry = &events.Retry{Base: text(base), Factor: &factor, Max: text(most), Jitter: &jitter}
	}
}

// BizKey attaches a key of the caller's own world, repeated in every event.
func BizKey(key string) Option { return func(t *Task) { t.request.BizKey = key } }

// Unique lets at most one task of the type hold a key. Without further options the key is held until the task has ended, and a submission
// is refused meanwhile (code unique_held, the error's Holder is the task that has it).
func Unique(key string, opts ...UniqueOption) Option {
	return func(t *Task) {
		t.request.Unique = &events.Unique{Key: key}
		for _, opt := range opts {
			opt(t.request.Unique)
		}
	}
}

// UniqueOption changes how long a unique key is held, or what happens when it is.
type UniqueOption func(*events.Unique)

// UniqueFor holds the key for a time from the submission, whatever becomes of the task: 1 s to 8760 h.
func UniqueFor(d time.Duration) UniqueOption {
	return func(u *events.Unique) { u.Scope, u.For = string(task.ScopeDuration), text(d) }
}

// UniqueForever never gives the key to another task.
func UniqueForever() UniqueOption {
	return func(u *events.Unique) { u.Scope = string(task.ScopeForever) }
}

// OrKeep answers a submission whose key is held with the id of the holder.
func OrKeep() UniqueOption {
	return func(u *events.Unique) { u.OnConflict = string(task.ConflictKeep) }
}

// OrReplace cancels a holder that does not run (reason replaced) and puts the new task in its place. One that runs is left alone, and
// the submission refused.
func OrReplace() UniqueOption {
	return func(u *events.Unique) { u.OnConflict = string(task.ConflictReplace) }
}

// OrDebounce is OrReplace for tasks with a [Delay]: each submission puts the start off by its delay, at most until mostWait after the
// first of them; zero means ten delays.
func OrDebounce(mostWait time.Duration) UniqueOption {
	return func(u *events.Unique) {
		u.OnConflict = string(task.ConflictDebounce)
		if mostWait != 0 {
			u.MaxWait = text(mostWait)
		}
	}
}

// Label attaches a label, repeated in every event.
func Label(name, value string) Option {
	return func(t *Task) {
		if t.request.Labels == nil {
			t.request.Labels = map[string]string{}
		}
		t.request.Labels[name] = value
	}
}

// NoDeadLetter leaves no dead letter behind when the task fails for good.
func NoDeadLetter() Option { return func(t *Task) { t.request.OnExhausted = "ignore" } }

func text(d time.Duration) *string {
	s := d.String()
	return &s
}

func moment(t time.Time) *string {
	s := t.UTC().Format(time.RFC3339Nano)
	return &s
}
