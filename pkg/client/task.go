package client

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Task is a submission: what is to be done, and how.
type Task struct {
	request events.SubmitRequest
	err     error // of encoding the payload; returned by whatever submits the task
}

// Option sets one property of a task.
type Option func(*events.Submit)

// NewTask makes a submission of a task type. The payload is encoded as JSON; a [json.RawMessage] is taken as it is, nil means
// none. Mistakes are reported by the call that submits it.
func NewTask(taskType string, payload any, opts ...Option) Task {
	t := Task{request: events.SubmitRequest{Type: taskType}}
	if payload != nil {
		raw, err := json.Marshal(payload)
		if err != nil {
			t.err = &events.Error{Code: events.CodeInvalid, Field: "payload", Allowed: "a value that encodes as JSON",
				Message: fmt.Sprintf("field payload: a value of type %T cannot be encoded as JSON: %v", payload, err)}
		}
		t.request.Payload = raw
	}
	for _, opt := range opts {
		opt(&t.request.Submit)
	}
	if t.request.ID == "" {
		t.request.ID = events.NewID()
	}
	return t
}

// TaskOf makes a submission of a body as it is sent over NATS.
func TaskOf(request events.SubmitRequest) Task {
	if request.ID == "" {
		request.ID = events.NewID()
	}
	return Task{request: request}
}

// ID is the id the task will have.
func (t Task) ID() string { return t.request.ID }

// Check refuses a task as the submitter would, with an [*events.Error] that names the field. Every call that submits a task
// checks it first.
func (t Task) Check() error {
	if t.err != nil {
		return t.err
	}
	_, err := intake.Build(&t.request.Submit, intake.Origin{Type: t.request.Type, Source: intake.SourceAPI, Now: time.Now()})
	return err
}

// ID chooses the task's id: 1 to 128 characters of A-Z a-z 0-9 . _ : -, not beginning with cron: or ax:.
func ID(id string) Option { return func(s *events.Submit) { s.ID = id } }

// Priority is 0 (most urgent) to 9; default 5.
func Priority(p int) Option { return func(s *events.Submit) { s.Priority = &p } }

// Delay lets the task start no sooner than this long after it is stored.
func Delay(d time.Duration) Option { return func(s *events.Submit) { s.Delay = text(d) } }

// At lets the task start no sooner than a time, which is compared with the database's clock.
func At(t time.Time) Option { return func(s *events.Submit) { s.ScheduledAt = moment(t) } }

// ExpiresAt fails the task (reason expired) if it has not started by then.
func ExpiresAt(t time.Time) Option { return func(s *events.Submit) { s.ExpiresAt = moment(t) } }

// Timeout bounds each attempt; default 30 min.
func Timeout(d time.Duration) Option { return func(s *events.Submit) { s.Timeout = text(d) } }

// MaxAttempts is how often the task may fail before it is failed for good; default 3.
func MaxAttempts(n int) Option { return func(s *events.Submit) { s.MaxAttempts = &n } }

// MaxLosses is how many lost workers the task survives; default 3, 0 means at most once.
func MaxLosses(n int) Option { return func(s *events.Submit) { s.MaxLosses = &n } }

// Retry sets the wait after failure n to min(most, base * factor^(n-1)), plus a random share of it between 0 and jitter.
func Retry(base time.Duration, factor float64, most time.Duration, jitter float64) Option {
	return func(s *events.Submit) {
		s.Retry = &events.Retry{Base: text(base), Factor: &factor, Max: text(most), Jitter: &jitter}
	}
}

// BizKey attaches a key of the caller's own world, repeated in every event.
func BizKey(key string) Option { return func(s *events.Submit) { s.BizKey = key } }

// Label attaches a label, repeated in every event.
func Label(name, value string) Option {
	return func(s *events.Submit) {
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		s.Labels[name] = value
	}
}

// NoDeadLetter leaves no dead letter behind when the task fails for good.
func NoDeadLetter() Option { return func(s *events.Submit) { s.OnExhausted = "ignore" } }

func text(d time.Duration) *string {
	s := d.String()
	return &s
}

func moment(t time.Time) *string {
	s := t.UTC().Format(time.RFC3339Nano)
	return &s
}
