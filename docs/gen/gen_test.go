package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	root, err := repository()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	require.NoError(t, err)
	return string(text)
}

// What is made from the code is the code's.
func TestGeneratedDocumentsAreCurrent(t *testing.T) {
	root, err := repository()
	require.NoError(t, err)
	for path, make := range generated {
		t.Run(path, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			now := read(t, path)
			want, err := make(ctx, root, now)
			require.NoError(t, err)
			require.Equal(t, want, now, "run: go run ./docs/gen")
		})
	}
}

func TestEveryMessageHasItsPlaceInTheDocument(t *testing.T) {
	root, err := repository()
	require.NoError(t, err)
	src, err := readSource(filepath.Join(root, "pkg", "events"))
	require.NoError(t, err)

	t.Run("every struct that travels is a schema", func(t *testing.T) {
		described := schemas(src)
		for name := range src.types {
			require.NotNil(t, described.get(name), "%s is on the wire and not in bodies of docs/gen/schema.go", name)
		}
		require.Len(t, described, len(src.types))
	})
	t.Run("what refines a field names one", func(t *testing.T) {
		for name := range refined {
			of, field, _ := strings.Cut(name, ".")
			require.Contains(t, src.fields[of], field, name)
		}
	})
	t.Run("every subject is a channel or covers one", func(t *testing.T) {
		constants := src.beginning("Subject", "API")
		require.Greater(t, len(constants), 15)
		for _, c := range constants {
			require.True(t, slices.ContainsFunc(channels, func(ch channel) bool { return covers(c.value, ch.address) }), "%s (%s)", c.name, c.value)
		}
		for _, ch := range channels {
			require.True(t, slices.ContainsFunc(constants, func(c constant) bool { return covers(c.value, ch.address) }), ch.address)
		}
	})
	t.Run("every stream takes its channels and no others", func(t *testing.T) {
		streams := natsbus.Streams(natsbus.Sizes{}, 1)
		for _, ch := range channels {
			var of string
			for _, s := range streams {
				if slices.ContainsFunc(s.Subjects, func(subject string) bool { return covers(subject, ch.address) }) {
					of = s.Name
				}
			}
			require.Equal(t, of, ch.stream, ch.address)
		}
	})
	t.Run("every message is used", func(t *testing.T) {
		var used []string
		for _, ch := range channels {
			used = append(used, ch.messages()...)
			if ch.reply != "" {
				used = append(used, ch.answers()...)
			}
		}
		for _, m := range messages {
			require.Contains(t, used, m.name)
		}
	})
	t.Run("every kind of CloudEvent is a message", func(t *testing.T) {
		for _, c := range src.beginning("Type") {
			require.True(t, slices.ContainsFunc(messages, func(m message) bool { return m.kind == c.value }), c.value)
		}
	})
	t.Run("every header, subject and example is in the text", func(t *testing.T) {
		text := read(t, "docs", "events.md")
		for _, c := range src.beginning("Header") {
			require.Contains(t, text, "`"+c.value+"`")
		}
		for name := range src.fields["Submit"] {
			require.Contains(t, text, "`"+name+"`")
		}
		files, err := filepath.Glob(filepath.Join(root, "pkg", "events", "testdata", "*.json"))
		require.NoError(t, err)
		for _, f := range files {
			name := strings.TrimSuffix(filepath.Base(f), ".json")
			if name != "submit" && name != "event" && name != "answer" { // every field at once, as no real one has; the others stand in for them
				require.Contains(t, text, "<!-- made: example "+name+" -->")
			}
		}
	})
}

// covers tells whether a subject with wildcards, or a prefix, takes in an address with parameters.
func covers(subject, address string) bool {
	if subject == events.SubjectAPI {
		return strings.HasPrefix(address, subject+".")
	}
	if prefix, ok := strings.CutSuffix(subject, ">"); ok {
		return strings.HasPrefix(address, prefix)
	}
	return subject == address
}

// The schemas take the golden messages, whose every field they know; what the code refuses they refuse.
func TestSchemasTakeTheGoldenMessages(t *testing.T) {
	root, err := repository()
	require.NoError(t, err)
	var doc any
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "docs", "asyncapi.yaml")), &doc))
	asJSON, err := json.Marshal(doc)
	require.NoError(t, err)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft7)
	require.NoError(t, compiler.AddResource("ax:asyncapi", parsed))
	check := func(t *testing.T, schema, body string) error {
		compiled, err := compiler.Compile("ax:asyncapi#/components/schemas/" + schema)
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		require.NoError(t, err)
		return compiled.Validate(value)
	}
	examples := map[string][]string{"Submit": {"submit"}, "Event": {"event"}, "Answer": {"answer"}}
	for _, m := range messages {
		if m.body != "" {
			examples[m.body] = append(examples[m.body], m.examples...)
		}
	}
	require.Greater(t, len(examples), 15)
	for schema, names := range examples {
		t.Run(schema, func(t *testing.T) {
			shown := map[string]any{}
			for _, name := range names {
				text, err := golden(root, name)
				require.NoError(t, err)
				require.NoError(t, check(t, schema, string(text)), name)
				require.NoError(t, json.Unmarshal(text, &shown))
			}
			if schema == "SubmitRequest" { // a type and a submission
				return
			}
			properties := lookup(t, doc, "components", "schemas", schema, "properties")
			require.ElementsMatch(t, slices.Collect(maps.Keys(properties)), slices.Collect(maps.Keys(shown)), "the golden messages show every field")
		})
	}
	for name, bad := range map[string]struct{ schema, body string }{
		"unknown field":  {"Submit", `{"maxAttempt":3}`},
		"priority":       {"Submit", `{"priority":10}`},
		"attempts":       {"Submit", `{"maxAttempts":-1}`},
		"id":             {"Submit", `{"id":"a b"}`},
		"type":           {"SubmitRequest", `{"type":"Email"}`},
		"no type":        {"SubmitRequest", `{}`},
		"no seq":         {"Event", `{"id":"a"}`},
		"state":          {"Event", `{"id":"a","type":"t","seq":1,"state":"done","reason":"","attempt":0,"at":"","by":""}`},
		"too many tasks": {"Signal", `{"tasks":[` + strings.Repeat(`{"id":"a","seq":1,"attempt":1,"at":1},`, events.MaxSignalTasks) + `{"id":"a","seq":1,"attempt":1,"at":1}]}`},
	} {
		t.Run("refused: "+name, func(t *testing.T) { require.Error(t, check(t, bad.schema, bad.body)) })
	}
}

func lookup(t *testing.T, v any, path ...string) map[string]any {
	t.Helper()
	for _, key := range path {
		m, ok := v.(map[string]any)
		require.True(t, ok, key)
		v = m[key]
	}
	m, ok := v.(map[string]any)
	require.True(t, ok)
	return m
}

func TestReferencesInTheDocumentLead(t *testing.T) {
	var doc any
	text := read(t, "docs", "asyncapi.yaml")
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	found := regexp.MustCompile(`\$ref: '#/([^']+)'`).FindAllStringSubmatch(text, -1)
	require.Greater(t, len(found), 50)
	for _, ref := range found {
		require.NotEmpty(t, lookup(t, doc, strings.Split(ref[1], "/")...), ref[1])
	}
}

// The submission that the documentation shows is one that is taken.
func TestTheSubmissionShownIsTaken(t *testing.T) {
	root, err := repository()
	require.NoError(t, err)
	text, err := golden(root, "submit_typical")
	require.NoError(t, err)
	sub, err := events.DecodeSubmit(text)
	require.NoError(t, err)
	_, err = intake.Build(&sub, intake.Origin{Type: "email", Source: intake.SourceNATS, Now: time.Now()})
	require.NoError(t, err)
}

func TestAPartThatNothingMakesIsAnError(t *testing.T) {
	root, err := repository()
	require.NoError(t, err)
	_, err = fillEvents(t.Context(), root, "<!-- made: nonsense -->\n<!-- end -->")
	require.ErrorContains(t, err, "nonsense")
	_, err = fillEvents(t.Context(), root, "<!-- made: example nonsense -->\n<!-- end -->")
	require.ErrorIs(t, err, os.ErrNotExist)
}
