package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestErrorsKeepTheirCauseAndNilStaysNil(t *testing.T) {
	cause := errors.New("cause")
	for _, err := range []error{NonRetryable(cause), RetryAfter(time.Second, cause), ErrorCode("c", cause)} {
		require.ErrorIs(t, err, cause)
		require.EqualError(t, err, "cause")
	}
	require.NoError(t, NonRetryable(nil))
	require.NoError(t, RetryAfter(time.Second, nil))
	require.NoError(t, ErrorCode("c", nil))
}

func TestOutcomeOfAnEnding(t *testing.T) {
	e := &execution{task: &task.Task{ID: "a", Claim: "c", MaxAttempts: 3, Timeout: time.Second}}
	plainError := errors.New("no")
	for name, c := range map[string]struct {
		end   ending
		cause error
		kind  task.OutcomeKind
		delay time.Duration
		why   task.Reason
	}{
		"success":                    {ending{result: json.RawMessage(`1`)}, nil, task.Succeeded, 0, ""},
		"success after shutdown":     {ending{}, ErrShutdown, task.Succeeded, 0, ""},
		"success after timeout":      {ending{}, ErrTimeout, task.Succeeded, 0, ""},
		"success after cancel":       {ending{}, ErrCancelled, task.CancelledByRequest, 0, ""},
		"error":                      {ending{err: plainError}, nil, task.FailedAttempt, 0, task.ReasonError},
		"error after cancel":         {ending{err: plainError}, ErrCancelled, task.CancelledByRequest, 0, ""},
		"snooze after cancel":        {ending{err: Snooze(time.Hour)}, ErrCancelled, task.CancelledByRequest, 0, ""},
		"crash after cancel":         {ending{crash: &crash{}}, ErrCancelled, task.CancelledByRequest, 0, ""},
		"error after timeout":        {ending{err: plainError}, ErrTimeout, task.FailedAttempt, 0, task.ReasonTimeout},
		"error after shutdown":       {ending{err: plainError}, ErrShutdown, task.Released, 0, ""},
		"ctx error after shutdown":   {ending{err: fmt.Errorf("x: %w", context.Canceled)}, ErrShutdown, task.Released, 0, ""},
		"wrapped in retry after":     {ending{err: RetryAfter(time.Hour, context.Canceled)}, ErrShutdown, task.Released, 0, ""},
		"retry after shutdown":       {ending{err: RetryAfter(time.Hour, plainError)}, ErrShutdown, task.FailedAttempt, time.Hour, task.ReasonError},
		"snooze after shutdown":      {ending{err: Snooze(time.Hour)}, ErrShutdown, task.Snoozed, time.Hour, ""},
		"final after shutdown":       {ending{err: NonRetryable(plainError)}, ErrShutdown, task.FailedForGood, 0, task.ReasonError},
		"crash after shutdown":       {ending{crash: &crash{message: "x"}}, ErrShutdown, task.FailedAttempt, 0, task.ReasonPanic},
		"cancelled without a reason": {ending{err: context.Canceled}, nil, task.FailedAttempt, 0, task.ReasonError},
		"snooze":                     {ending{err: fmt.Errorf("x: %w", Snooze(time.Minute))}, nil, task.Snoozed, time.Minute, ""},
		"snooze for no time":         {ending{err: Snooze(-1)}, nil, task.Snoozed, MinDelay, ""},
		"snooze for ever":            {ending{err: Snooze(math.MaxInt64)}, nil, task.Snoozed, MaxDelay, ""},
		"retry at once":              {ending{err: RetryAfter(0, plainError)}, nil, task.FailedAttempt, MinDelay, task.ReasonError},
		"final":                      {ending{err: errors.Join(plainError, NonRetryable(plainError))}, nil, task.FailedForGood, 0, task.ReasonError},
		"final and snooze":           {ending{err: NonRetryable(Snooze(time.Hour))}, nil, task.FailedForGood, 0, task.ReasonError},
		"result not encodable":       {ending{reject: "no"}, nil, task.RejectedResult, 0, task.ReasonRejectedResult},
		"result too large":           {ending{result: make([]byte, task.MaxResult+1)}, nil, task.RejectedResult, 0, task.ReasonRejectedResult},
		"goexit":                     {goexit, nil, task.FailedAttempt, 0, task.ReasonPanic},
		"error whose chain panics":   {ending{err: unwrapping{}}, nil, task.FailedAttempt, 0, task.ReasonPanic},
	} {
		o := e.outcome(c.end, c.cause)
		require.Equal(t, c.kind, o.Kind, name)
		require.Equal(t, c.delay, o.Delay, name)
		require.Equal(t, task.Owned{ID: "a", Claim: "c"}, o.Owned, name)
		if c.why == "" {
			require.Nil(t, o.Error, name)
		} else {
			require.Equal(t, c.why, o.Error.Cause, name)
		}
	}
}

func TestEncode(t *testing.T) {
	for name, c := range map[string]struct {
		value any
		want  string
		fails bool
	}{
		"nil":             {nil, "", false},
		"nil pointer":     {(*int)(nil), "", false},
		"number":          {1 << 60, "1152921504606846976", false},
		"raw":             {json.RawMessage(` {"n":1e400} `), `{"n":1e400}`, false},
		"empty raw":       {json.RawMessage{}, "", false},
		"raw null":        {json.RawMessage("null"), "", false},
		"broken raw":      {json.RawMessage("{"), "", true},
		"raw not UTF-8":   {json.RawMessage("\"a\xff\""), "", true},
		"raw in a struct": {struct{ V json.RawMessage }{json.RawMessage("\"a\xff\"")}, "", true},
		"not UTF-8":       {"a\xff", `"a\ufffd"`, false},
		"NaN":             {math.NaN(), "", true},
		"channel":         {make(chan int), "", true},
	} {
		got, err := encode(c.value)
		require.Equal(t, c.fails, err != nil, name)
		require.Equal(t, c.want, string(got), name)
	}
}

func TestSafeText(t *testing.T) {
	require.Equal(t, "line\n\tnext é 😀", safeText("line\n\tnext é 😀"))
	require.Equal(t, `\u0000\u001b[31m\u000d\u202e`+"\ufffd", safeText("\x00\x1b[31m\r\u202e\xff"))
	rapid.Check(t, func(t *rapid.T) {
		s := safeText(string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")))
		require.True(t, plain(s))
		n := rapid.IntRange(0, 40).Draw(t, "n")
		short := cut(s, n)
		require.LessOrEqual(t, len(short), n)
		require.True(t, utf8.ValidString(short))
		require.True(t, strings.HasPrefix(s, short))
	})
}

func TestStackBeginsAtThePanic(t *testing.T) {
	k := &kind{handler: func(context.Context, Task) (any, error) { panic("x") }}
	end := k.invoke(t.Context(), Task{})
	require.True(t, strings.HasPrefix(end.crash.stack, "panic("), end.crash.stack)
	require.Contains(t, end.crash.stack, "TestStackBeginsAtThePanic")
}

func TestPaceKeepsSmallBatchesApart(t *testing.T) {
	p := pace{apart: finishApart}
	now := time.Now()
	ok, _ := p.allows(1, false, now)
	require.True(t, ok, "a lone one goes at once")
	p.start(now)
	p.end(now, now.Add(time.Millisecond))
	ok, wait := p.allows(2, false, now.Add(4*time.Millisecond))
	require.False(t, ok)
	require.Equal(t, finishApart-4*time.Millisecond, wait)
	ok, _ = p.allows(largeBatch, false, now.Add(4*time.Millisecond))
	require.True(t, ok, "a large one does not wait")
	ok, _ = p.allows(2, false, now.Add(finishApart))
	require.True(t, ok)
}

func TestPace(t *testing.T) {
	now := time.Now()
	var p pace
	ok, _ := p.allows(0, false, now)
	require.False(t, ok, "nothing to send")
	ok, _ = p.allows(1, false, now)
	require.True(t, ok, "at once when idle")
	ok, wait := p.allows(1, true, now)
	require.False(t, ok, "others are about to come")
	require.Equal(t, company, wait)
	ok, _ = p.allows(1, true, now.Add(company))
	require.True(t, ok, "but not for long")
	p.start(now)
	ok, wait = p.allows(1, false, now)
	require.False(t, ok, "gather while one is under way")
	require.Equal(t, slowBatch, wait)
	ok, _ = p.allows(1, false, now.Add(slowBatch))
	require.True(t, ok, "unless it is slow")
	ok, _ = p.allows(largeBatch, false, now)
	require.True(t, ok, "or the next one is large")
	second := now.Add(time.Millisecond)
	p.start(second)
	ok, wait = p.allows(1000, false, now.Add(time.Hour))
	require.False(t, ok, "never a third")
	require.Zero(t, wait)
	p.end(now, now.Add(800*time.Millisecond))
	ok, wait = p.allows(1, false, second.Add(slowBatch))
	require.False(t, ok, "what is slow depends on how long they take")
	require.Equal(t, 3*100*time.Millisecond-slowBatch, wait)
}

func TestBackoffAndJitterStayInTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(-1, 1_000_000).Draw(t, "n")
		d := backoff(n, 50*time.Millisecond, 2*time.Second)
		require.GreaterOrEqual(t, d, 25*time.Millisecond)
		require.LessOrEqual(t, d, 2*time.Second)
		j := jitter(time.Second)
		require.InDelta(t, 1, j.Seconds(), 0.1001)
	})
}
