package task

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of what a submission may hold. They are the same at every door.
const (
	MaxIDLength        = 128
	MaxTypeLength      = 64
	MaxPayload         = 512 << 10 // bytes of JSON
	MaxResult          = 512 << 10 // bytes of JSON
	MaxErrorText       = 8 << 10   // bytes of the stored error, a JSON string
	MaxHistory         = 100       // transitions kept, the newest
	MaxEcho            = 4 << 10   // bytes of bizKey, labels and workflowId as JSON, repeated in every event
	MaxLabels          = 32
	MaxLabelLength     = 128
	MaxBizKey          = 256
	MaxBy              = 128
	MaxTimeout         = 7 * 24 * time.Hour
	DefaultTimeout     = 30 * time.Minute
	DefaultMaxAttempts = 3
	MaxMaxAttempts     = 10_000
	DefaultMaxLosses   = 3
	MaxMaxLosses       = 1_000
	DefaultLease       = 30 * time.Second
	// TimeoutGrace is added to a task's timeout for the deadline that the reaper enforces, so that a worker which is alive
	// reports the timeout itself.
	TimeoutGrace = 5 * time.Second
	// CancelGrace is how long a running task's lease may go on after a cancel was asked for.
	CancelGrace = 30 * time.Second
)

// MaxTime is the latest time a task may name. Later ones are refused: they are almost always a wrong unit.
var MaxTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

const idAlphabet = "1 to 128 characters of A-Z a-z 0-9 . _ : -"

// ValidateID checks a task id chosen by a caller. Ids beginning "cron:" or "ax:" belong to ax and are refused.
func ValidateID(id string) error {
	if !WellFormedID(id) {
		return &FieldError{Field: "id", Value: id, Allowed: idAlphabet}
	}
	if strings.HasPrefix(id, SlotPrefix) || strings.HasPrefix(id, "ax:") {
		return &FieldError{Field: "id", Value: id, Allowed: idAlphabet + ", not beginning with cron: or ax:"}
	}
	return nil
}

// WellFormedID reports whether id has the form of a task id, reserved prefixes included.
func WellFormedID(id string) bool {
	if id == "" || len(id) > MaxIDLength {
		return false
	}
	for i := 0; i < len(id); i++ {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}

// ValidateType checks a task type: a NATS token, a metric label and a URL segment without escaping.
func ValidateType(name string) error {
	ok := name != "" && len(name) <= MaxTypeLength
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		ok = alnum || i > 0 && (c == '_' || c == '-')
	}
	if !ok {
		return &FieldError{Field: "type", Value: name, Allowed: "1 to 64 characters of a-z 0-9 _ -, beginning with a letter or digit"}
	}
	return nil
}

// Validate checks a task that intake has filled in. It returns the first [FieldError]. The form of fields that only the
// message has (durations, unknown names) is checked before, where the message is decoded.
func (t *Task) Validate() error {
	if err := ValidateType(t.Type); err != nil {
		return err
	}
	if !WellFormedID(t.ID) {
		return &FieldError{Field: "id", Value: t.ID, Allowed: idAlphabet}
	}
	switch {
	case t.Priority < MinPriority || t.Priority > MaxPriority:
		return &FieldError{Field: "priority", Value: strconv.Itoa(t.Priority), Allowed: "a whole number from 0 (most urgent) to 9"}
	case t.MaxAttempts < 1 || t.MaxAttempts > MaxMaxAttempts:
		return &FieldError{Field: "maxAttempts", Value: strconv.Itoa(t.MaxAttempts), Allowed: "a whole number from 1 to 10000"}
	case t.MaxLosses < 0 || t.MaxLosses > MaxMaxLosses:
		return &FieldError{Field: "maxLosses", Value: strconv.Itoa(t.MaxLosses), Allowed: "a whole number from 0 (at most once) to 1000"}
	case t.Timeout < time.Millisecond || t.Timeout > MaxTimeout:
		return &FieldError{Field: "timeout", Value: t.Timeout.String(), Allowed: "a duration from 1ms to 168h"}
	case len(t.Payload) > MaxPayload:
		return &FieldError{Field: "payload", Value: fmt.Sprintf("%d bytes", len(t.Payload)), Allowed: fmt.Sprintf("at most %d bytes of JSON", MaxPayload), TooLarge: true}
	case !utf8.Valid(t.Payload): // the JSON readers let it pass, the database does not
		return &FieldError{Field: "payload", Value: strings.ToValidUTF8(string(t.Payload[:min(len(t.Payload), shownValue)]), "\uFFFD"), Allowed: "JSON in UTF-8"}
	case t.OnExhausted != DeadLetter && t.OnExhausted != Ignore:
		return &FieldError{Field: "onExhausted", Value: t.OnExhausted, Allowed: "deadletter or ignore"}
	}
	if err := t.ValidateTimes(); err != nil {
		return err
	}
	if err := t.Retry.Validate(); err != nil {
		return err
	}
	return t.validateKeys()
}

// ValidateTimes checks ScheduledAt (zero: at once) and ExpiresAt (zero: never), as [Task.Validate] does.
func (t *Task) ValidateTimes() error {
	switch {
	case !t.ScheduledAt.IsZero() && !plausible(t.ScheduledAt): // zero: at once
		return &FieldError{Field: "scheduledAt", Value: t.ScheduledAt.Format(time.RFC3339), Allowed: "a time from 1970 to 2200"}
	case !t.ExpiresAt.IsZero() && !plausible(t.ExpiresAt):
		return &FieldError{Field: "expiresAt", Value: t.ExpiresAt.Format(time.RFC3339), Allowed: "a time from 1970 to 2200"}
	case !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(t.ScheduledAt):
		return &FieldError{Field: "expiresAt", Value: t.ExpiresAt.Format(time.RFC3339), Allowed: "a time after scheduledAt"}
	}
	return nil
}

func (t *Task) validateKeys() error {
	if t.Unique != nil && (t.UniqueKey == "" || len(t.UniqueKey) > MaxUniqueKey || !printable(t.UniqueKey)) {
		return &FieldError{Field: "unique.key", Value: t.UniqueKey, Allowed: "1 to 256 bytes of UTF-8 without control characters"}
	}
	if len(t.BizKey) > MaxBizKey || !printable(t.BizKey) {
		return &FieldError{Field: "bizKey", Value: t.BizKey, Allowed: "up to 256 bytes of UTF-8 without control characters"}
	}
	if len(t.Labels) > MaxLabels {
		return &FieldError{Field: "labels", Value: fmt.Sprintf("%d labels", len(t.Labels)), Allowed: "at most 32 labels"}
	}
	for _, k := range slices.Sorted(maps.Keys(t.Labels)) { // sorted, so that the same body gets the same answer
		if k == "" || len(k) > MaxLabelLength || !printable(k) || strings.HasPrefix(k, "$") || strings.Contains(k, ".") {
			return &FieldError{Field: "labels", Value: k, Allowed: "names of 1 to 128 bytes of UTF-8 without control characters, without $ at the start and without a dot"}
		}
		if v := t.Labels[k]; len(v) > MaxLabelLength || !printable(v) {
			return &FieldError{Field: "labels." + k, Value: v, Allowed: "up to 128 bytes of UTF-8 without control characters"}
		}
	}
	if len(t.Echo) > MaxEcho {
		return &FieldError{Field: "labels", Value: fmt.Sprintf("%d bytes", len(t.Echo)), Allowed: "bizKey, labels and workflowId of at most 4096 bytes together, as JSON"}
	}
	return nil
}

// ValidateBy checks the name under which somebody outside changes a task. It stands in the history and, between bars, in
// the change string.
func ValidateBy(by string) error {
	if len(by) > MaxBy || !printable(by) || strings.Contains(by, "|") {
		return &FieldError{Field: "by", Value: by, Allowed: "up to 128 bytes of UTF-8 without control characters and without |"}
	}
	return nil
}

func plausible(t time.Time) bool { return t.Year() >= 1970 && !t.After(MaxTime) }

// printable refuses what could break a log line or a table, or make it read otherwise than it is: control characters, line
// separators and the marks that turn the direction of writing.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == '\ufeff' {
			return false
		}
	}
	return true
}
