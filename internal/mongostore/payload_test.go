package mongostore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/task"
)

// roundTrip encodes and decodes a payload; queryable tells whether it is stored as BSON.
func roundTrip(t require.TestingT, payload string) (got json.RawMessage, queryable bool) {
	doc, err := appendTask(nil, &task.Task{ID: "x", Payload: json.RawMessage(payload)})
	require.NoError(t, err)
	require.NoError(t, bson.Raw(doc).Validate())
	decoded, err := decodeTask(doc)
	require.NoError(t, err)
	_, err = bson.Raw(doc).LookupErr("payload")
	return decoded.Payload, err == nil
}

func TestPayloadForms(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		payload   string
		queryable bool
	}{
		{`null`, true}, {`true`, true}, {`{}`, true}, {`[]`, true}, {`""`, true}, {`[[],{}]`, true},
		{`{"b":1,"a":[1,"x",null,{"z":false}]}`, true},
		{`"héllo 世界 🎉 \u0000 \n \" \\ $x"`, true}, {`{"naïve":"$ref"}`, true},
		{`[0,-1,2147483647,2147483648,-2147483649,9007199254740993,9223372036854775807,-9223372036854775808]`, true},
		{`[1.5,-0.25,0.1,123456.789,52.520006599999995,1764550800.123456,0.000001]`, true}, {`1e-07`, true}, {`1e-7`, false}, {`100000000000000000000`, true},
		{`9223372036854775808`, false}, // a double would round it
		{`1e400`, false}, {`1e5`, false}, {`1.0`, false}, {`1E3`, false}, {`-0`, false}, {`-0.0`, false},
		{`0.1000000000000000055511151231257827`, false},
		{`{"a":1,"a":2}`, false}, {`{"x":{"a":1,"b":2,"a":3}}`, false},
		{`{"$set":{"a":1}}`, false}, {`{"a.b":1}`, false}, {`{"":1}`, false}, {`{"a\u0000b":1}`, false},
		{`"\ud800"`, false}, {`{"\udc00":1}`, false}, {`"\ufffd"`, false}, {`"\ud83c\udf89"`, true},
		{deep(maxPayloadDepth), true}, {deep(maxPayloadDepth + 1), false}, {deep(2000), false},
		{`[` + strings.Repeat("1,", 120_000) + `1]`, false}, // several times its size in BSON
	} {
		name := c.payload[:min(len(c.payload), 40)]
		got, queryable := roundTrip(t, c.payload)
		require.Equal(t, c.queryable, queryable, name)
		requireSameJSON(t, c.payload, string(got))
	}
	got, _ := roundTrip(t, " {\"a\" :\t[1 , 2]}\n")
	require.Equal(t, `{"a":[1,2]}`, string(got))

	doc, err := appendTask(nil, &task.Task{ID: "x"})
	require.NoError(t, err)
	decoded, err := decodeTask(doc)
	require.NoError(t, err)
	require.Nil(t, decoded.Payload, "no payload is not null")
}

// Text that is not JSON never comes here through a door; if it does it is kept, not mended.
func TestPayloadThatIsNoJSON(t *testing.T) {
	for _, payload := range []string{"", "{", "[1,]", `{"a" 1}`, "1 2", "nope", `{"a":1}}`} {
		got, queryable := roundTrip(t, payload)
		require.Equal(t, payload, string(got))
		require.False(t, queryable, payload)
	}
}

// requireSameJSON compares values, order of keys and text of numbers; the spelling of strings may differ.
func requireSameJSON(t require.TestingT, want, got string) {
	require.Equal(t, tokens(t, want), tokens(t, got))
}

func tokens(t require.TestingT, text string) []string {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var out []string
	for d.More() || len(out) == 0 {
		depth := 0
		for {
			tok, err := d.Token()
			require.NoError(t, err)
			out = append(out, fmt.Sprintf("%T %v", tok, tok))
			if delim, ok := tok.(json.Delim); ok {
				if strings.ContainsRune("{[", rune(delim)) {
					depth++
				} else {
					depth--
				}
			}
			if depth == 0 {
				break
			}
		}
	}
	return out
}

func TestAnyPayloadComesBackAsItWentIn(t *testing.T) {
	text := rapid.Custom(func(t *rapid.T) string {
		quoted, _ := json.Marshal(rapid.String().Draw(t, "text"))
		return string(quoted)
	})
	number := rapid.OneOf(
		rapid.Map(rapid.Int64(), func(n int64) string { return fmt.Sprint(n) }),
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?`),
		rapid.Map(rapid.Float64Range(-1e30, 1e30), func(f float64) string { return fmt.Sprint(f) }),
	)
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		leaf := []*rapid.Generator[string]{rapid.SampledFrom([]string{"null", "true", "false"}), number, text}
		if depth == 0 {
			return rapid.OneOf(leaf...)
		}
		return rapid.OneOf(append(leaf,
			rapid.Map(rapid.SliceOfN(value(depth-1), 0, 4), func(v []string) string { return "[" + strings.Join(v, ",") + "]" }),
			rapid.Custom(func(t *rapid.T) string {
				var members []string
				for range rapid.IntRange(0, 4).Draw(t, "members") {
					members = append(members, text.Draw(t, "key")+":"+value(depth-1).Draw(t, "value"))
				}
				return "{" + strings.Join(members, ",") + "}"
			}))...)
	}
	rapid.Check(t, func(t *rapid.T) {
		payload := value(3).Draw(t, "payload")
		got, _ := roundTrip(t, payload)
		requireSameJSON(t, payload, string(got))
	})
}

// The same through the server, and filtered by where that is possible.
func TestPayloadsThroughTheServer(t *testing.T) {
	s := openStore(t)
	payloads := []string{`{"to":"a@example.com","n":9007199254740993}`, `1e400`, `{"$set":{"state":"failed"}}`, `{"a.b":{"$x":"$$NOW"}}`,
		`{"a":1,"a":2}`, `"\ud800"`, `"$state"`, `[null,1.0,"🎉"]`, strings.Repeat("[", 500) + strings.Repeat("]", 500)}
	for _, payload := range payloads {
		tk := insertTasks(t, s, 1, func(tk *task.Task) { tk.Payload = json.RawMessage(payload) })[0]
		held := claimTasks(t, s, tk)[0]
		requireSameJSON(t, payload, string(held.Payload))
		finishOne(t, s, held, task.Succeeded)
		requireSameJSON(t, payload, string(getTask(t, s, tk.ID).Payload))
	}
	// What no door lets through is stored all the same, and its neighbours with it.
	tasks := insertTasks(t, s, 2)
	tasks = append(tasks, newTask(func(tk *task.Task) { tk.Payload = json.RawMessage("\"a\xff\"") }))
	require.ErrorContains(t, tasks[2].Validate(), "JSON in UTF-8")
	_, err := s.Insert(t.Context(), tasks)
	require.NoError(t, err)
	require.Equal(t, "\"a\uFFFD\"", string(getTask(t, s, tasks[2].ID).Payload))

	n, err := s.tasks.CountDocuments(t.Context(), bson.D{{Key: "payload.to", Value: "a@example.com"}})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

func TestErrorTextIsBounded(t *testing.T) {
	for name, e := range map[string]task.Error{
		"small":       {Message: "boom", Code: "E", Cause: task.ReasonPanic, Stack: "main.go:1", Attempt: 3},
		"stack":       {Message: "boom", Stack: strings.Repeat("goroutine 1 [running]\n", 5000)},
		"message":     {Message: strings.Repeat("é", 20_000), Code: "E"},
		"all escaped": {Message: strings.Repeat("\x00", 20_000), Code: strings.Repeat("\x00", 2_000), Stack: strings.Repeat("\x00", 20_000)},
		"not UTF-8":   {Message: "a\xffb\xc3", Code: "\xff"},
	} {
		text := errorText(&e)
		require.LessOrEqual(t, len(text), task.MaxErrorText, name)
		require.True(t, utf8.ValidString(text), name)
		got := decodeError(text)
		require.NotEmpty(t, got.Message, name)
		require.Equal(t, e.Cause, got.Cause, name)
		require.Equal(t, e.Attempt, got.Attempt, name)
		if name == "small" {
			require.Equal(t, &e, got)
		}
		if name == "stack" {
			require.Equal(t, e.Message, got.Message)
			require.Greater(t, len(got.Stack), 2000, "as much as fits")
		}
		if name == "message" {
			require.Equal(t, "E", got.Code)
			require.True(t, strings.HasPrefix(e.Message, got.Message))
			require.Greater(t, len(got.Message), 3000)
		}
	}
	require.Equal(t, &task.Error{Message: "plain"}, decodeError("plain"), "a text of another form is shown")
}

// A document that another version wrote: unknown fields are skipped, missing and odd ones are zero, a broken one is an error.
func TestDecodeIsTolerant(t *testing.T) {
	raw, err := bson.Marshal(bson.D{{Key: "_id", Value: "x"}, {Key: "news", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "seq", Value: int32(4)},
		{Key: "priority", Value: 3.0}, {Key: "scheduledAt", Value: nil}, {Key: "history", Value: "none"}, {Key: "result", Value: nil},
		{Key: "lastError", Value: `{"message":"m"}`}, {Key: "errorCode", Value: "E7"}, {Key: "dependsOn", Value: bson.A{"a"}}})
	require.NoError(t, err)
	got, err := decodeTask(raw)
	require.NoError(t, err)
	require.Equal(t, &task.Task{ID: "x", Seq: 4, Priority: 3, DependsOn: []string{"a"}, LastError: &task.Error{Message: "m", Code: "E7"}}, got)

	for n := range raw {
		broken := bytes.Clone(raw[:n])
		_, err := decodeTask(broken)
		require.Error(t, err, "cut after %d bytes", n)
	}
}
