package events_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/pkg/events"
)

func ptr[T any](v T) *T { return &v }

// One of each message, with every field set.
var golden = map[string]any{
	"submit": events.Submit{
		ID: "order-7", Payload: json.RawMessage(`{"to":"a@example.com","n":1.50,"tag":"<b>&"}`), Priority: ptr(2),
		ScheduledAt: ptr("2026-01-02T15:04:05Z"), Delay: ptr("90s"), ExpiresAt: ptr("2026-01-03T15:04:05Z"), Timeout: ptr("PT90S"),
		MaxAttempts: ptr(5), MaxLosses: ptr(0), Retry: &events.Retry{Base: ptr("1s"), Factor: ptr(2.5), Max: ptr("1h"), Jitter: ptr(0.0)},
		BizKey: "customer-9", Unique: &events.Unique{Key: "k", Scope: "duration", For: ptr("10m"), OnConflict: "debounce", MaxWait: ptr("1h")}, DependsOn: []string{"a", "b"},
		Condition: "all_done", WaitFor: []string{"approval"}, ConcurrencyKey: "tenant-1", Labels: map[string]string{"team": "red"},
		OnExhausted: "ignore",
	},
	"submit_request": events.SubmitRequest{Type: "email", Submit: events.Submit{ID: "order-7", Payload: json.RawMessage(`[1]`)}},
	"signal": events.Signal{Tasks: []events.SignalTask{
		{ID: "order-7", Seq: 3, Attempt: 2, At: 1767366245006}, {ID: "cron:nightly:2026-01-02T00:00:00Z", Seq: 1, Attempt: 1, At: 5},
	}},
	"cancel": events.Cancel{ID: "order-7", ExecutionID: "CLAIM:order-7"},
	"event": events.Event{
		ID: "order-7", Type: "email", Seq: 4, From: "running", State: "failed", Reason: "exhausted", Attempt: 3,
		ExecutionID: "CLAIM:order-7", At: "2026-01-02T15:04:05.006Z", By: "worker-1", ScheduledAt: "2026-01-02T15:04:05.006Z",
		Error: &events.EventError{Message: "no such host", Code: "dns", Cause: "error"}, Result: json.RawMessage(`{"ok":true}`),
		ResultSize: 70000, BizKey: "customer-9", Labels: map[string]string{"team": "red"}, WorkflowID: "w-1",
		Gap: &events.Gap{FromSeq: 2, ToSeq: 3},
	},
	"answer": events.Answer{ID: "order-7", Accepted: true, Duplicate: true, Error: &events.Error{
		Code: events.CodeInvalid, Field: "delay", Value: "90", Allowed: "a duration", Message: "field delay"}},
	"dead_submit": events.DeadSubmit{Subject: "ax.submit.email", Sequence: 12, At: "2026-01-02T15:04:05.006Z",
		Error: events.Error{Code: events.CodeInvalid, Message: "no"}, Body: []byte("{broken"), Size: 800_000},
}

// The form of each message is a contract: a change that shows here breaks programs that are already deployed.
func TestGoldenMessages(t *testing.T) {
	for name, message := range golden {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".json")
			got, err := events.Encode(message)
			require.NoError(t, err)
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(path, append(got, '\n'), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, strings.TrimSpace(string(want)), string(got))
		})
	}
}

func TestGoldenMessagesReadBack(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		require.NoError(t, err)
		return data
	}
	submit, err := events.DecodeSubmit(read("submit"))
	require.NoError(t, err)
	require.Equal(t, golden["submit"], submit)

	request, err := events.DecodeSubmitRequest(read("submit_request"))
	require.NoError(t, err)
	require.Equal(t, golden["submit_request"], request)

	event, err := events.DecodeEvent(read("event"))
	require.NoError(t, err)
	require.Equal(t, golden["event"], event)

	signal, err := events.DecodeSignal(read("signal"))
	require.NoError(t, err)
	require.Equal(t, golden["signal"], signal)
	require.Equal(t, strings.TrimSpace(string(read("signal"))), string(events.EncodeSignal(signal)), "written by hand as encoding/json would")
}

func TestSubmitIsRefused(t *testing.T) {
	deep := strings.Repeat(`[`, 200_000)
	for _, test := range []struct{ name, body, field, value, allowed, message string }{
		{name: "empty body", body: "", field: "body", allowed: "a JSON object", message: "body is empty"},
		{name: "only white space", body: " \n\t", field: "body", message: "body is empty"},
		{name: "no JSON", body: `{payload:1}`, value: "{payload:1}", message: "not valid JSON"},
		{name: "cut off", body: `{"payload":{"a":1}`, message: "not valid JSON"},
		{name: "text behind", body: `{} {}`, message: "not valid JSON"},
		{name: "trailing comma", body: `{"id":"a",}`, message: "not valid JSON"},
		{name: "not UTF-8", body: "{\"bizKey\":\"\xff\"}", field: "body", value: "{\"bizKey\":\"\uFFFD\"}", allowed: "UTF-8", message: "UTF-8"},
		{name: "a list", body: `[{}]`, field: "body", value: `[{}]`, message: "not a JSON object"},
		{name: "null", body: `null`, field: "body", value: "null", message: "not a JSON object"},
		{name: "deep", body: `{"payload":` + deep, message: "not valid JSON"},
		{name: "deep and closed", body: `{"payload":` + deep + strings.Repeat(`]`, 200_000) + `}`, message: "not valid JSON"},
		{name: "misspelt", body: `{"maxAttempt":3}`, field: "maxAttempt", allowed: "maxAttempts", message: "did you mean maxAttempts?"},
		{name: "other case", body: `{"MaxAttempts":3}`, field: "MaxAttempts", allowed: "maxAttempts", message: "did you mean maxAttempts?"},
		{name: "unknown", body: `{"zebra":3}`, field: "zebra", allowed: "id, payload, priority", message: "the fields are id, payload"},
		{name: "unknown and long", body: `{"` + strings.Repeat("z", 500_000) + `":3}`, message: "is unknown"},
		{name: "empty name", body: `{"":3}`, message: "is unknown"},
		{name: "escaped name twice", body: `{"id":"a","\u0069d":"b"}`, field: "id", value: `"b"`, allowed: "once"},
		{name: "twice", body: `{"payload":1,"payload":2}`, field: "payload", value: "2", allowed: "once"},
		{name: "null field", body: `{"id":null}`, field: "id", value: "null", allowed: "a string"},
		{name: "string for number", body: `{"priority":"high"}`, field: "priority", value: `"high"`, allowed: "0 (most urgent) to 9"},
		{name: "fraction", body: `{"maxAttempts":1.5}`, field: "maxAttempts", value: "1.5", allowed: "a whole number"},
		{name: "out of range", body: `{"maxAttempts":99999999999999999999}`, field: "maxAttempts", allowed: "a whole number"},
		{name: "duration as number", body: `{"delay":30}`, field: "delay", value: "30", allowed: "with a unit"},
		{name: "time as number", body: `{"scheduledAt":1767366245}`, field: "scheduledAt", value: "1767366245", allowed: "with a zone"},
		{name: "list of numbers", body: `{"dependsOn":["a", 7]}`, field: "dependsOn[1]", value: "7", allowed: "a string"},
		{name: "string for list", body: `{"dependsOn":"a"}`, field: "dependsOn", value: `"a"`, allowed: "a list of strings"},
		{name: "label of number", body: `{"labels":{"a":1}}`, field: "labels.a", value: "1", allowed: "a string"},
		{name: "label twice", body: `{"labels":{"a":"1","a":"2"}}`, field: "labels.a", allowed: "once"},
		{name: "labels as list", body: `{"labels":["a"]}`, field: "labels", allowed: "an object"},
		{name: "nested misspelt", body: `{"retry":{"bse":"1s"}}`, field: "retry.bse", allowed: "base", message: "did you mean base?"},
		{name: "nested wrong type", body: `{"retry":{"factor":"2"}}`, field: "retry.factor", value: `"2"`, allowed: "a number"},
		{name: "nested scalar", body: `{"unique":"k"}`, field: "unique", value: `"k"`, allowed: "an object"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := events.DecodeSubmit([]byte(test.body))
			var refused *events.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, events.CodeInvalid, refused.Code)
			require.NotEmpty(t, refused.Message)
			require.Less(t, len(refused.Message), 600, "a sentence, whatever the body")
			require.Contains(t, refused.Message, test.message)
			require.Contains(t, refused.Allowed, test.allowed)
			if test.field != "" {
				require.Equal(t, test.field, refused.Field)
				require.Contains(t, refused.Message, test.field)
			}
			if test.value != "" {
				require.Equal(t, test.value, refused.Value)
			}
		})
	}
}

func TestSubmitManyNamesTheTask(t *testing.T) {
	_, err := events.DecodeSubmitManyRequest([]byte(`{"tasks":[{"type":"a"},{"type":"b","priorty":1}]}`))
	var refused *events.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "tasks[1].priorty", refused.Field)
	require.Contains(t, refused.Message, "did you mean priority?")
}

func TestSubmitPayloadStaysAsSent(t *testing.T) {
	for _, payload := range []string{`1.50`, `1e400`, `"\u00e9\ud83d\ude00<>&"`, `{ "b" : 1 , "a" : [ ] , "a" : {"}":"\"]"} }`, `null`, `"x"`} {
		s, err := events.DecodeSubmit([]byte("\n {\"id\" : \"a\" , \"payload\" :\t" + payload + " , \"bizKey\":\"k\"}\r\n"))
		require.NoError(t, err)
		require.Equal(t, payload, string(s.Payload))
		require.Equal(t, "k", s.BizKey)
	}
	s, err := events.DecodeSubmit([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, events.Submit{}, s)
}

func TestEventIgnoresWhatANewerVersionAdds(t *testing.T) {
	e, err := events.DecodeEvent([]byte(`{"id":"a","type":"email","seq":2,"state":"running","reason":"claimed","shard":7}`))
	require.NoError(t, err)
	require.Equal(t, int64(2), e.Seq)
	for _, body := range []string{``, `[]`, `{"id":"a"}`, `{"id":"a","type":"t","state":"pending","seq":0}`, `{"id":"a","type":"t","state":"pending","seq":"1"}`} {
		_, err := events.DecodeEvent([]byte(body))
		require.Error(t, err, body)
	}
}

func TestEventLeavesLargeResultOut(t *testing.T) {
	e := events.Event{ID: "a", Type: "t", Seq: 1, State: "success", Result: json.RawMessage(`"` + strings.Repeat("x", events.MaxEventResult) + `"`)}
	data, err := events.EncodeEvent(e)
	require.NoError(t, err)
	read, err := events.DecodeEvent(data)
	require.NoError(t, err)
	require.Nil(t, read.Result)
	require.Equal(t, events.MaxEventResult+2, read.ResultSize)

	e.Result = e.Result[2:] // exactly the limit, but no longer JSON
	_, err = events.EncodeEvent(e)
	require.Error(t, err)
	e.Result = json.RawMessage(`"` + strings.Repeat("x", events.MaxEventResult-2) + `"`)
	data, err = events.EncodeEvent(e)
	require.NoError(t, err)
	read, err = events.DecodeEvent(data)
	require.NoError(t, err)
	require.Len(t, read.Result, events.MaxEventResult)
}

func TestSignalIsChecked(t *testing.T) {
	many := events.Signal{Tasks: make([]events.SignalTask, events.MaxSignalTasks)}
	for i := range many.Tasks {
		many.Tasks[i].ID = "a"
	}
	_, err := events.DecodeSignal(events.EncodeSignal(many))
	require.NoError(t, err)
	many.Tasks = append(many.Tasks, events.SignalTask{ID: "a"})
	for _, body := range []string{``, `{}`, `{"tasks":[]}`, `{"tasks":[{"seq":1}]}`, string(events.EncodeSignal(many))} {
		_, err := events.DecodeSignal([]byte(body))
		require.Error(t, err)
	}
}

// Whatever is accepted strictly means the same to encoding/json, and survives being written and read again.
func FuzzDecodeSubmit(f *testing.F) {
	for name := range golden {
		data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"payload":{"a":"\"}"},"labels":{"x":"y"},"retry":{"jitter":1e-3},"dependsOn":[ "a" ,"b"]}`))
	f.Add([]byte(`{"id":"a","\u0069d":"b"}`))
	f.Add([]byte("{\"payload\":\"\xff\"}"))
	f.Add([]byte(`{"unique":{"key":"k"},"payload":[[[[{}]]]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := events.DecodeSubmit(data)
		if err != nil {
			var refused *events.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, events.CodeInvalid, refused.Code)
			return
		}
		var plain events.Submit
		require.NoError(t, json.Unmarshal(data, &plain))
		require.Equal(t, plain, s)
		written, err := events.Encode(s)
		require.NoError(t, err)
		again, err := events.DecodeSubmit(written)
		require.NoError(t, err)
		twice, err := events.Encode(again)
		require.NoError(t, err)
		require.Equal(t, string(written), string(twice))
	})
}

func FuzzDecodeEvent(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "event.json"))
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"id":"a","type":"t","seq":1,"state":"running","result":[1,2,{"a":null}]}`))
	f.Add([]byte(`{"id":"a","type":"t","seq":9223372036854775807,"state":"s","gap":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := events.DecodeEvent(data)
		if err != nil {
			return
		}
		written, err := events.EncodeEvent(e)
		require.NoError(t, err)
		again, err := events.DecodeEvent(written)
		require.NoError(t, err)
		require.Equal(t, e.ID, again.ID)
		require.Equal(t, e.Seq, again.Seq)
		require.Equal(t, e.State, again.State)
	})
}
