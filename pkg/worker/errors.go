package worker

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Causes of a handler's ended context, to be read with [context.Cause].
var (
	// ErrTimeout: the task's timeout has passed. The attempt has been reported as failed.
	ErrTimeout = errors.New("the task's timeout has passed")
	// ErrCancelled: somebody asked for the task to be cancelled.
	ErrCancelled = errors.New("the task was cancelled")
	// ErrLeaseLost: this execution is no longer valid, or the database could not be reached in time to be sure that it is.
	// Another worker may run the task now.
	ErrLeaseLost = errors.New("the task's lease was lost")
	// ErrShutdown: the worker stops. The task is handed back without costing an attempt.
	ErrShutdown = errors.New("the worker is shutting down")
)

// Other errors.
var (
	// ErrBusy is matched by what [Once] returns while another execution is inside the function of the same key.
	ErrBusy = errors.New("another execution holds the key")
	// ErrNoTask is returned by functions that need a handler's context and were given another one.
	ErrNoTask = errors.New("the context is not one of a task handler")
	// ErrDeaf is matched by what [Worker.Run] returns when handlers did not return although their context had ended. Their
	// tasks come back when their leases end.
	ErrDeaf = errors.New("handlers ignored the end of their context")
)

// Bounds of the delays that a handler may ask for. A delay outside is moved to the nearest bound.
const (
	MinDelay = 100 * time.Millisecond
	MaxDelay = 365 * 24 * time.Hour
)

// maxCode is how long an error code may be; what is longer is cut.
const maxCode = 64

type snoozeError struct {
	delay time.Duration
	cause error // nil, or why it snoozes
}

func (e *snoozeError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%v; called again in %v", e.cause, e.delay)
	}
	return fmt.Sprintf("called again in %v", e.delay)
}

func (e *snoozeError) Unwrap() error { return e.cause }

type retryAfterError struct {
	delay time.Duration
	err   error
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

type nonRetryableError struct{ err error }

func (e *nonRetryableError) Error() string { return e.err.Error() }
func (e *nonRetryableError) Unwrap() error { return e.err }

type codedError struct {
	code string
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// Snooze, returned from a handler, asks for another call after d. It costs neither an attempt nor a failure. d is moved
// into [MinDelay, MaxDelay].
func Snooze(d time.Duration) error { return &snoozeError{delay: bound(d)} }

// RetryAfter, returned from a handler, fails the attempt like err does but lets the next one start after d instead of the
// delay that the task's retry policy computes. d is moved into [MinDelay, MaxDelay]. It returns nil for a nil err.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{delay: bound(d), err: err}
}

// NonRetryable, returned from a handler, ends the task as failed whatever attempts are left. It returns nil for a nil err.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &nonRetryableError{err: err}
}

// ErrorCode names an error for filters and metrics, in up to 64 bytes such as "card_declined". It returns nil for a nil err.
func ErrorCode(code string, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code: cut(safeText(code), maxCode), err: err}
}

func bound(d time.Duration) time.Duration { return min(max(d, MinDelay), MaxDelay) }

// safeText makes a text from a handler fit to be stored and shown anywhere: valid UTF-8, and control characters other than
// line feed and tab, which could break or colour a terminal or hide what the text says, written out as escapes.
func safeText(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\ufffd") {
		if unsafeRune(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func plain(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return strings.IndexFunc(s, unsafeRune) < 0
}

func unsafeRune(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}

// cut shortens s to at most n bytes without breaking a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
