package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Bad input is refused before anything is connected: no NATS runs here.
func TestBadInputIsRefusedWithFieldValueAndWhatIsAllowed(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large.json")
	require.NoError(t, os.WriteFile(large, []byte(`"`+strings.Repeat("x", 600<<10)+`"`), 0o600))
	for name, tc := range map[string]struct {
		args []string
		says []string
	}{
		"unknown field":            {[]string{"submit", "email", "--body", `{"maxAttempt":2}`}, []string{"maxAttempt", "maxAttempts"}},
		"misspelt duration":        {[]string{"submit", "email", "--delay", "5sec"}, []string{"delay", "5sec", "90s"}},
		"duration without unit":    {[]string{"submit", "email", "--delay", "30"}, []string{"delay", "30", "unit"}},
		"priority 10":              {[]string{"submit", "email", "--priority", "10"}, []string{"priority", "10", "0 (most urgent) to 9"}},
		"negative maxAttempts":     {[]string{"submit", "email", "--max-attempts", "-1"}, []string{"maxAttempts", "-1", "1 to 10000"}},
		"payload over the limit":   {[]string{"submit", "email", "--payload", "@" + large}, []string{"payload", "614402 bytes", "524288"}},
		"illegal type":             {[]string{"submit", "E-Mail"}, []string{"type", "E-Mail", "a-z 0-9 _ -"}},
		"illegal id":               {[]string{"submit", "email", "--id", "a b"}, []string{"id", "a b", "A-Z a-z 0-9"}},
		"reserved id":              {[]string{"submit", "email", "--id", "cron:x"}, []string{"id", "cron:x", "not beginning with"}},
		"scheduledAt without zone": {[]string{"submit", "email", "--at", "2030-01-31T08:00:00"}, []string{"scheduledAt", "2030-01-31T08:00:00", "zone"}},
		"invalid JSON":             {[]string{"submit", "email", "--body", `{"payload":`}, []string{"not valid JSON"}},
		"payload that is no JSON":  {[]string{"submit", "email", "--payload", `to: a@example.com`}, []string{"payload", "to: a@example.com", "JSON"}},
		"empty body":               {[]string{"submit", "email", "--body", ""}, []string{"--body", "empty"}},
		"empty body on stdin":      {[]string{"submit", "email", "--body", "-"}, []string{"body is empty", "{}"}},
		"empty id":                 {[]string{"submit", "email", "--id", ""}, []string{"--id", "empty"}},
		"empty id in a body":       {[]string{"submit", "email", "--body", `{"id":""}`}, []string{"id", "1 to 128 characters"}},
		"scope without its time":   {[]string{"submit", "email", "--unique", "k", "--unique-scope", "duration"}, []string{"unique.for", "a duration"}},
		"unknown conflict":         {[]string{"submit", "email", "--unique", "k", "--on-conflict", "skip"}, []string{"unique.onConflict", "skip", "reject, keep, replace or debounce"}},
		"conflict without a key":   {[]string{"submit", "email", "--on-conflict", "keep"}, []string{"--on-conflict", "--unique"}},
		"watch another state":      {[]string{"watch", "--state", "done"}, []string{"state", "done", "success"}},
		"watch an illegal type":    {[]string{"watch", "--type", "E-Mail"}, []string{"type", "E-Mail", "a-z 0-9 _ -"}},
		"watch an illegal id":      {[]string{"watch", "--id", "a b"}, []string{"id", "a b", "A-Z a-z 0-9"}},
		"a page of nothing":        {[]string{"list", "--limit", "0"}, []string{"limit", "0", "1 to 1000"}},
		"no time to wait":          {[]string{"get", "a", "--timeout", "0s"}, []string{"--timeout", "0s", "above zero"}},
		"timeout without unit":     {[]string{"get", "a", "--timeout", "5"}, []string{"--timeout", "5", "unit"}},
		"unknown command":          {[]string{"nonsense"}, []string{"nonsense", "ax --help"}},
		"misspelt command":         {[]string{"sumbit", "email"}, []string{"sumbit", "did you mean submit?"}},
		"unknown schedule command": {[]string{"schedule", "nonsense"}, []string{"nonsense", "ax schedule --help"}},
		"body beside its members":  {[]string{"submit", "email", "--body", "{}", "--id", "a"}, []string{"--body", "--id"}},
		"port of dev":              {[]string{"dev", "--nats-port", "65536"}, []string{"--nats-port", "65536", "0 to 65535"}},
		"ports of dev":             {[]string{"dev", "--http-port", "65535"}, []string{"--http-port", "65535", "0 to 65531"}},
		"unknown flag":             {[]string{"submit", "email", "--prio", "1"}, []string{"--prio", "--help"}},
		"a label twice":            {[]string{"submit", "email", "--label", "a=1", "--label", "a=2"}, []string{"labels.a", "a=2", "each name once"}},
		"no database":              {[]string{"verify", "--mongo", "mongodb://127.0.0.1:1", "--mongo-db", "a.b"}, []string{"--mongo-db", "a.b", "1 to 63"}},
		"export of no time":        {[]string{"export", "--mongo", "mongodb://127.0.0.1:1", "--since", "yesterday"}, []string{"--since", "yesterday", "24h"}},
		"export of no type":        {[]string{"export", "--mongo", "mongodb://127.0.0.1:1", "--type", "E-Mail"}, []string{"--type", "E-Mail"}},
		"no type":                  {[]string{"submit"}, []string{"1 argument"}},
		"empty schedule payload":   {[]string{"schedule", "put", "a", "@hourly", "email", "--payload", ""}, []string{"--payload", "empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(t.Context(), append(tc.args, "--nats", "nats://127.0.0.1:1"), strings.NewReader(""), &out, &errs)
			require.Equal(t, exitInvalid, code, errs.String())
			require.Empty(t, out.String())
			for _, part := range tc.says {
				require.Contains(t, errs.String(), part)
			}
		})
	}
}

func TestAnAddressThatCannotWorkIsBadInput(t *testing.T) {
	t.Setenv("AX_NATS_URL", stacktest.NATS(t).URL()) // what an empty flag must not be taken for is the default
	for _, command := range [][]string{{"list"}, {"submit", "email"}, {"watch"}, {"verify", "--mongo", "mongodb://127.0.0.1:1", "--events"}} {
		for address, says := range map[string]string{"foo:bar": "nats://host:port", "": "--nats is empty"} {
			var out, errs bytes.Buffer
			require.Equal(t, exitInvalid, run(t.Context(), append(command, "--nats", address), strings.NewReader(""), &out, &errs), errs.String())
			require.Contains(t, errs.String(), says)
			require.Empty(t, out.String())
		}
	}
}

func TestWithoutNATSTheCommandSaysWhatToDo(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitFailed, run(t.Context(), []string{"submit", "email", "--nats", "nats://ann:s3cret@127.0.0.1:1"}, strings.NewReader(""), &out, &errs))
	require.Contains(t, errs.String(), "ax dev")
	require.NotContains(t, errs.String(), "s3cret")
	require.Empty(t, out.String())
}

// Who was not answered must know the id that was made, to ask about it or to submit the same again.
func TestASubmissionWithoutAnAnswerNamesItsID(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitFailed, run(t.Context(), []string{"submit", "email", "--nats", stacktest.NATS(t).URL()}, strings.NewReader(""), &out, &errs))
	require.Regexp(t, `--id [0-9A-Z]{26} the same submission is stored once`, errs.String())
	require.Empty(t, out.String())
}

func TestAnIDThatIsTakenIsBadInput(t *testing.T) {
	require.True(t, invalid(&events.Error{Code: events.CodeIDConflict}))
	require.False(t, invalid(&events.Error{Code: events.CodeUnavailable}))
}
