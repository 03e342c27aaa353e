package client

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// What Go can express and ax does not take is refused by every call that submits, before anything is sent.
func TestBadTasksAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		task                  Task
		field, value, allowed string
	}{
		"priority 10":             {NewTask("email", nil, Priority(10)), "priority", "10", "0 (most urgent) to 9"},
		"negative maxAttempts":    {NewTask("email", nil, MaxAttempts(-1)), "maxAttempts", "-1", "1 to 10000"},
		"negative maxLosses":      {NewTask("email", nil, MaxLosses(-1)), "maxLosses", "-1", "0 (at most once) to 1000"},
		"negative delay":          {NewTask("email", nil, Delay(-time.Second)), "delay", "-1s", "not negative"},
		"zero timeout":            {NewTask("email", nil, Timeout(0)), "timeout", "0s", "1ms to 168h"},
		"time that was not set":   {NewTask("email", nil, At(time.Time{})), "scheduledAt", "0001-01-01T00:00:00Z", "1970 to 2200"},
		"expiry before the start": {NewTask("email", nil, At(time.Unix(2_000_000_000, 0)), ExpiresAt(time.Unix(1_900_000_000, 0))), "expiresAt", "2030-03-17T17:46:40Z", "after scheduledAt"},
		"retry that shrinks":      {NewTask("email", nil, Retry(time.Second, 0.5, time.Minute, 0)), "retry.factor", "0.5", ""},
		"illegal type":            {NewTask("E-Mail", nil), "type", "E-Mail", "a-z 0-9 _ -"},
		"no type":                 {NewTask("", nil), "type", "", "a-z 0-9 _ -"},
		"illegal id":              {NewTask("email", nil, ID("a b")), "id", "a b", "A-Z a-z 0-9"},
		"reserved id":             {NewTask("email", nil, ID("ax:1")), "id", "ax:1", "not beginning with"},
		"id that was not set":     {NewTask("email", nil, ID("")), "id", "", "1 to 128 characters"},
		"large payload":           {NewTask("email", make([]byte, task.MaxPayload)), "payload", "699054 bytes", "at most 524288"},
		"payload that is no JSON": {NewTask("email", json.RawMessage(`{"a":`)), "payload", `{"a":`, "JSON"},
		"payload of a Go kind":    {NewTask("email", func() {}), "payload", "func()", "encodes as JSON"},
		"misspelt duration":       {TaskOf(events.SubmitRequest{Type: "email", Submit: events.Submit{Delay: new("5sec")}}), "delay", "5sec", `such as "90s"`},
		"what is not there yet":   {TaskOf(events.SubmitRequest{Type: "email", Submit: events.Submit{ConcurrencyKey: "k"}}), "concurrencyKey", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var refused *events.Error
			require.ErrorAs(t, c.task.Check(), &refused)
			require.Equal(t, c.field, refused.Field, refused.Message)
			require.Equal(t, c.value, refused.Value, refused.Message)
			require.Contains(t, refused.Allowed, c.allowed)
			require.NotEmpty(t, refused.Message)
		})
	}
}

func TestGoodTasksPass(t *testing.T) {
	for name, one := range map[string]Task{
		"nothing": NewTask("email", nil),
		"all": NewTask("email", map[string]int{"a": 1}, ID("order:7"), Priority(0), Delay(time.Minute), Timeout(time.Hour), MaxAttempts(1), MaxLosses(0),
			Retry(time.Second, 2, time.Minute, 0.5), BizKey("b"), Label("a", "b"), Label("c", "d"), NoDeadLetter()),
		"a time in a zone": NewTask("email", nil, At(time.Date(2030, 1, 31, 8, 0, 0, 1, time.FixedZone("", 3600)))),
	} {
		require.NoError(t, one.Check(), name)
		require.NotEmpty(t, one.ID())
	}
	require.NotEqual(t, NewTask("email", nil).ID(), NewTask("email", nil).ID())
}

// This host's clock may be an hour ahead. Whether a delay ends before the expiry is for the database's time to decide.
func TestChecksDoNotAskThisHostsClock(t *testing.T) {
	require.NoError(t, NewTask("email", nil, Delay(10*time.Minute), ExpiresAt(time.Now().Add(-30*time.Minute))).Check())
	require.NoError(t, NewTask("email", nil, At(time.Now().Add(-time.Hour)), ExpiresAt(time.Now().Add(-30*time.Minute))).Check())
	require.Error(t, NewTask("email", nil, Delay(70*365*24*time.Hour), ExpiresAt(time.Now())).Check(), "at no time")
}
