package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/pkg/events"
)

func TestEventLine(t *testing.T) {
	for want, e := range map[string]events.Event{
		"T  email  a  new -> pending  submitted": {State: "pending", Reason: "submitted", Seq: 1},
		"T  email  a  running -> pending  retry  attempt 2  no route [dns]": {From: "running", State: "pending", Reason: "retry", Attempt: 2, Seq: 5,
			Error: &events.EventError{Message: "no route", Code: "dns"}},
		"T  email  a  is running; changes 12 to 150 can no longer be told": {State: "running", Seq: 150, Gap: &events.Gap{FromSeq: 12, ToSeq: 150}},
	} {
		e.At, e.Type, e.ID = "T", "email", "a"
		require.Equal(t, want, eventLine(e))
	}
}

// What comes from tasks cannot move the cursor or change colours.
func TestShownTextIsSafeForATerminal(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, showTask(&out, &settings{}, events.Task{ID: "a", BizKey: "\x1b[31mred\u202e", Labels: map[string]string{"\x07": "\r"},
		LastError: &events.EventError{Message: "\x1b[2J"}, Payload: json.RawMessage("\"\u009b\"")}))
	require.NotRegexp(t, "[\x00-\x09\x0b-\x1f\x7f-\u009f\u202e]", out.String())
	require.Contains(t, out.String(), "red")
}

func TestWhatWasLeftOutOfAnAnswerIsTold(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, showTask(&out, &settings{}, events.Task{ID: "a", PayloadSize: 500_002, ResultSize: 600_003}))
	require.Regexp(t, `(?m)^payload +500002 bytes, left out$`, out.String())
	require.Regexp(t, `(?m)^result +600003 bytes, left out$`, out.String())
}
