package intake

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func hashOf(t *testing.T, kind, body string) string {
	t.Helper()
	sub, err := events.DecodeSubmit([]byte(body))
	require.NoError(t, err)
	got, err := Build(&sub, Origin{Type: kind, Now: now, Body: []byte(body)})
	require.NoError(t, err)
	return got.SubmitHash
}

// The hash is stored: a version that computes another one would take repeats for conflicts.
func TestHashIsStable(t *testing.T) {
	canonical := "email\n" + `{"delay":"5s","labels":{"a":"\"1\\","b":"<é>"},"payload":{"n":1.0,"null":null,"ok":[true,"\u0007"],"to":"a@example.com"}}`
	want := fmt.Sprintf("v1:%x", sha256.Sum256([]byte(canonical)))
	require.Equal(t, want,
		hashOf(t, "email", `{"id":"order-7","payload":{"to":"a@example.com","n":1.0,"ok":[true,"\u0007"],"null":null},"delay":"5s","labels":{"b":"\u003c\u00e9>","a":"\"1\\"}}`))
}

func TestHashOfTheSameSubmission(t *testing.T) {
	want := hashOf(t, "email", `{"id":"a","payload":{"x":1,"y":[1.50,"é"]},"delay":"5s"}`)
	for name, body := range map[string]string{
		"other order":   `{"delay":"5s","payload":{"y":[1.50,"é"],"x":1},"id":"a"}`,
		"white space":   "{ \"id\" : \"a\",\n\"payload\":{\"x\":1, \"y\":[1.50, \"é\"]},\"delay\":\"5s\"}",
		"no id":         `{"payload":{"x":1,"y":[1.50,"é"]},"delay":"5s"}`,
		"other escapes": `{"id":"\u0061","payload":{"x":1,"y":[1.50,"\u00e9"]},"delay":"5s"}`,
	} {
		require.Equal(t, want, hashOf(t, "email", body), name)
	}
}

func TestHashOfAnotherSubmission(t *testing.T) {
	want := hashOf(t, "email", `{"id":"a","payload":{"x":1},"delay":"5s"}`)
	for name, body := range map[string]string{
		"payload":                   `{"id":"a","payload":{"x":2},"delay":"5s"}`,
		"text of a number":          `{"id":"a","payload":{"x":1.0},"delay":"5s"}`,
		"text instead of a number":  `{"id":"a","payload":{"x":"1"},"delay":"5s"}`,
		"delay":                     `{"id":"a","payload":{"x":1},"delay":"5000ms"}`,
		"a default written out":     `{"id":"a","payload":{"x":1},"delay":"5s","priority":5}`,
		"payload null":              `{"id":"a","payload":null,"delay":"5s"}`,
		"payload absent":            `{"id":"a","delay":"5s"}`,
		"a large number's last bit": `{"id":"a","payload":{"x":9007199254740993},"delay":"5s"}`,
	} {
		require.NotEqual(t, want, hashOf(t, "email", body), name)
	}
	require.NotEqual(t, want, hashOf(t, "sms", `{"id":"a","payload":{"x":1},"delay":"5s"}`), "type")
}

// What decoding would merge is told apart by its text. What only looks like it is not.
func TestHashOfAmbiguousPayloads(t *testing.T) {
	seen := map[string]string{}
	for _, payload := range []string{
		`{"a":1,"a":2}`, `{"a":2}`, `{"a":2,"a":2}`, `{"a":1,"\u0061":2}`, `{"x":[{"a":1,"a":2}]}`, `{"x":[{"a":2}]}`,
		`["\ud800"]`, `["\udfff"]`, `["\ufffd"]`, `["\ud800\ud800"]`, `["\udc00\ud800"]`, `["\ud83d\ude00"]`, `["\\ud800"]`, `{"\ud800":1}`, `{"\udfff":1}`,
		`["\ud800x"]`, `["\ud800\n\udc00"]`,
	} {
		sum := hashOf(t, "email", `{"id":"a","payload":`+payload+`}`)
		require.Empty(t, seen[sum], payload)
		seen[sum] = payload
		require.Equal(t, sum, hashOf(t, "email", `{"payload": `+payload+` ,"id":"a"}`), payload)
	}
	for _, same := range [][2]string{
		{`{"a":"\ud83d\ude00","b:":"\":\\"}`, `{"b:":"\":\\" , "a":"😀"}`}, {`["\uFFFD"]`, `["�"]`}, {`{"a":{"a":1}}`, `{"a" : {"\u0061":1}}`},
	} {
		require.Equal(t, hashOfPayload(t, same[0]), hashOfPayload(t, same[1]), same)
	}
}

// hashOfPayload is that of a caller in Go, which sends no body.
func hashOfPayload(t *testing.T, payload string) string {
	t.Helper()
	got, err := Build(&events.Submit{Payload: json.RawMessage(payload)}, Origin{Type: "email", Now: now})
	require.NoError(t, err)
	return got.SubmitHash
}

func TestHashDoesNotDependOnTheDoorOrTheTime(t *testing.T) {
	body := `{"id":"a","payload":{"x":"<&>"},"delay":"5s"}`
	want := hashOf(t, "email", body)

	request, err := events.DecodeSubmitRequest([]byte(`{"type":"email",` + body[1:]))
	require.NoError(t, err)
	byRequest, err := Build(&request.Submit, Origin{Type: request.Type, Now: now.Add(time.Hour), Body: []byte(`{"type":"email",` + body[1:])})
	require.NoError(t, err)
	require.Equal(t, want, byRequest.SubmitHash)

	byClient, err := Build(&request.Submit, Origin{Type: "email", Now: now})
	require.NoError(t, err)
	require.Equal(t, want, byClient.SubmitHash)
}

// A payload keeps its value whatever it is, and the hash of what was encoded again is the same.
func TestAnyPayloadSurvives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := anyJSON(rt, 3)
		payload, err := json.Marshal(value)
		if err != nil {
			rt.Fatal(err)
		}
		body := []byte(`{"payload": ` + string(payload) + ` }`)
		sub, err := events.DecodeSubmit(body)
		if err != nil {
			rt.Fatal(err)
		}
		sent, err := Build(&sub, Origin{Type: "email", Now: now, Body: body})
		if err != nil {
			rt.Fatal(err)
		}
		again, err := Build(&events.Submit{Payload: payload}, Origin{Type: "email", Now: now})
		if err != nil {
			rt.Fatal(err)
		}
		if string(sent.Payload) != string(payload) || sent.SubmitHash != again.SubmitHash {
			rt.Fatalf("%s became %s; hashes %s and %s", payload, sent.Payload, sent.SubmitHash, again.SubmitHash)
		}
	})
}

func anyJSON(rt *rapid.T, depth int) any {
	kind := rapid.IntRange(0, 5).Draw(rt, "kind")
	if depth == 0 && kind > 3 {
		kind = 0
	}
	switch kind {
	case 0:
		return rapid.String().Draw(rt, "text")
	case 1:
		return rapid.Int64().Draw(rt, "whole")
	case 2:
		return rapid.Float64().Draw(rt, "float")
	case 3:
		return rapid.SampledFrom([]any{nil, true, false}).Draw(rt, "word")
	case 4:
		list := make([]any, rapid.IntRange(0, 3).Draw(rt, "length"))
		for i := range list {
			list[i] = anyJSON(rt, depth-1)
		}
		return list
	default:
		object := map[string]any{}
		for range rapid.IntRange(0, 3).Draw(rt, "members") {
			object[rapid.String().Draw(rt, "name")] = anyJSON(rt, depth-1)
		}
		return object
	}
}

func FuzzTake(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"payload":{"a":[1,2.0,"x"]},"delay":"P1DT2H","labels":{"a":"b"}}`, `{"scheduledAt":"2026-03-01T12:00:00Z"}`,
		`{"retry":{"base":"1s","factor":2.5}}`, `{"id":"x","unique":{"key":"k"}}`, `[`, ``,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got, err := take(body)
		if err != nil {
			refused := Refusal(err)
			require.NotEmpty(t, refused.Message)
			require.NotEqual(t, events.CodeUnavailable, refused.Code)
			_, err := json.Marshal(refused)
			require.NoError(t, err)
			return
		}
		require.NoError(t, got.Validate())
		require.True(t, got.ScheduledAt.IsZero() || got.ScheduledAt.After(now) && !got.ScheduledAt.After(task.MaxTime))
		again, err := take(body)
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
