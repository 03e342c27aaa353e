// Package intake is the one mapping between what users send and see and the task of the domain. Every door (AX_SUBMIT,
// ax.api, pkg/client, InsertTx, cron, the CLI) goes through [Build], so that what is refused at one is refused at all, with
// the same words, and nothing of it is stored.
package intake

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Doors a task may have come through, kept in its source field.
const (
	SourceNATS = "nats" // published on ax.submit.<type>
	SourceAPI  = "api"  // ax.api
	SourceTx   = "tx"   // inserted in a caller's MongoDB transaction
	SourceCron = "cron" // the slot of a schedule
)

// Origin is what is known of a submission beside its body.
type Origin struct {
	Type string // task type, from the subject or the request
	// ID is the task's id if the submission names none: derived from a stream message or made by ax. Unlike a caller's it may
	// begin with a reserved prefix. Empty: a new one is made.
	ID string
	// Repeated says that ID may have been stored before: a redelivery, the slot of a schedule.
	Repeated    bool
	Source      string
	Traceparent string // W3C trace context; dropped when malformed, as that standard asks
	// Now is the database's time. A delay counts from it, and a time before it means at once.
	Now time.Time
	// At is when the submission was made, as its stream says; zero: now. It orders those that replace each other.
	At time.Time
	// Body is the submission as it was sent, which the hash is made from; nil: sub is encoded for it. The members "type" and
	// "id" do not count, so that the same submission has the same hash at every door.
	Body []byte
}

func (o Origin) at() time.Time {
	if o.At.IsZero() {
		return o.Now
	}
	return o.At
}

// Build makes the task of a submission, filled in but for what the store decides at its insert (state, times, history). A
// ScheduledAt of zero means at once. It refuses with an [*events.Error] that names the field, its value and what is allowed.
func Build(sub *events.Submit, from Origin) (*task.Task, error) {
	t, err := build(sub, from)
	if err != nil {
		return nil, Refusal(err)
	}
	return t, nil
}

func build(sub *events.Submit, from Origin) (*task.Task, error) {
	if err := refuseUnsupported(sub); err != nil {
		return nil, err
	}
	sum, err := hash(sub, from)
	if err != nil {
		return nil, err
	}
	t := &task.Task{
		Type: from.Type, State: task.Pending, Channel: task.ChannelStable, Source: from.Source, SubmitHash: sum,
		Priority:    valueOr(sub.Priority, task.DefaultPriority),
		MaxAttempts: valueOr(sub.MaxAttempts, task.DefaultMaxAttempts),
		MaxLosses:   valueOr(sub.MaxLosses, task.DefaultMaxLosses),
		OnExhausted: task.DeadLetter,
		BizKey:      sub.BizKey, Labels: sub.Labels,
	}
	if sub.OnExhausted != "" {
		t.OnExhausted = sub.OnExhausted
	}
	if wellFormedTrace.MatchString(from.Traceparent) {
		t.Traceparent = from.Traceparent
	}
	if err := setID(t, sub.ID, from); err != nil {
		return nil, err
	}
	if err := setTimes(t, sub, from.Now); err != nil {
		return nil, err
	}
	if t.Timeout, err = durationOr("timeout", sub.Timeout, task.DefaultTimeout); err != nil {
		return nil, err
	}
	if t.Retry, err = retryPolicy(sub.Retry); err != nil {
		return nil, err
	}
	if t.Payload, err = compact(sub.Payload); err != nil {
		return nil, err
	}
	if sub.Unique != nil && strings.HasPrefix(from.ID, "cron:") {
		return nil, unsupported("unique", "") // a slot is a task of its own for ever; the overlap policy is what keeps runs apart
	}
	if err := setUnique(t, sub.Unique, from.at()); err != nil {
		return nil, err
	}
	if t.Echo, err = echo(t); err != nil {
		return nil, err
	}
	return t, t.Validate()
}

var wellFormedTrace = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// refuseUnsupported refuses the fields whose features this version does not have: none may be accepted and ignored.
func refuseUnsupported(sub *events.Submit) error {
	for _, f := range [...]struct {
		name  string
		given bool
	}{
		{"dependsOn", len(sub.DependsOn) > 0},
		{"condition", sub.Condition != ""},
		{"waitFor", len(sub.WaitFor) > 0},
		{"concurrencyKey", sub.ConcurrencyKey != ""},
	} {
		if f.given {
			return unsupported(f.name, "")
		}
	}
	return nil
}

func setID(t *task.Task, chosen string, from Origin) error {
	switch {
	case chosen != "":
		t.ID, t.FixedID = chosen, true
		return task.ValidateID(chosen)
	case from.ID != "":
		t.ID, t.FixedID = from.ID, from.Repeated
	default:
		t.ID = events.NewID()
	}
	return nil
}

func setTimes(t *task.Task, sub *events.Submit, now time.Time) (err error) {
	if sub.ExpiresAt != nil {
		if t.ExpiresAt, err = parseTime("expiresAt", *sub.ExpiresAt); err != nil {
			return err
		}
	}
	switch {
	case sub.ScheduledAt != nil && sub.Delay != nil:
		return &task.FieldError{Field: "delay", Value: *sub.Delay, Allowed: "either scheduledAt or delay, not both"}
	case sub.ScheduledAt != nil:
		if t.ScheduledAt, err = parseTime("scheduledAt", *sub.ScheduledAt); err != nil {
			return err
		}
		if err := t.ValidateTimes(); err != nil { // before a past time is replaced below: expiresAt must lie behind what was sent
			return err
		}
	case sub.Delay != nil:
		delay, err := parseDuration("delay", *sub.Delay)
		if err != nil {
			return err
		}
		t.Delay = delay
		if t.ScheduledAt = wholeMillis(now.Add(delay)); t.ScheduledAt.After(task.MaxTime) {
			return &task.FieldError{Field: "delay", Value: *sub.Delay, Allowed: "a duration that ends before the year 2200"}
		}
	}
	if !t.ScheduledAt.After(now) {
		t.ScheduledAt = time.Time{} // a past time runs now, and does not jump the queue of those that came before it
	}
	return nil
}

func retryPolicy(r *events.Retry) (p task.RetryPolicy, err error) {
	p = task.DefaultRetry
	if r == nil {
		return p, nil
	}
	if p.Base, err = durationOr("retry.base", r.Base, p.Base); err != nil {
		return p, err
	}
	// A base above the default cap raises the cap, unless one is given.
	if p.Max, err = durationOr("retry.max", r.Max, max(p.Max, p.Base)); err != nil {
		return p, err
	}
	p.Factor = valueOr(r.Factor, p.Factor)
	p.Jitter = valueOr(r.Jitter, p.Jitter)
	return p, nil
}

// compact drops the white space between the tokens of a payload, so that its limit means the same at every door.
func compact(payload json.RawMessage) (json.RawMessage, error) {
	if payload == nil {
		return nil, nil
	}
	var b bytes.Buffer
	b.Grow(len(payload))
	if err := json.Compact(&b, payload); err != nil {
		return nil, notJSON(payload)
	}
	return b.Bytes(), nil
}

// notJSON can only happen to a caller in Go: elsewhere the whole body would not be JSON either.
func notJSON(payload json.RawMessage) *events.Error {
	return events.Invalid("payload", events.Shorten(string(payload)), "JSON")
}

// echo is what each event repeats of a task. Its members are named as those of [events.Event].
func echo(t *task.Task) (string, error) {
	if t.BizKey == "" && len(t.Labels) == 0 && t.WorkflowID == "" {
		return "", nil
	}
	text, err := events.Encode(struct {
		BizKey     string            `json:"bizKey,omitempty"`
		Labels     map[string]string `json:"labels,omitempty"`
		WorkflowID string            `json:"workflowId,omitempty"`
	}{t.BizKey, t.Labels, t.WorkflowID})
	return string(text), err
}

func valueOr[T any](given *T, otherwise T) T {
	if given == nil {
		return otherwise
	}
	return *given
}
