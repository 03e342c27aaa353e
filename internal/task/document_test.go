package task_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

var update = flag.Bool("update", false, "write the generated part of docs/lifecycle.md")

// The tables in the docs are the tables in the code.
func TestLifecycleDocumentShowsTheTransitions(t *testing.T) {
	const path, begin, end = "../../docs/lifecycle.md", "(go test ./internal/task -update) -->\n", "<!-- end -->"
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(raw), begin)
	require.True(t, ok, "the begin mark is missing")
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "the end mark is missing")

	var table strings.Builder
	table.WriteString("| from | to | reason | by |\n|---|---|---|---|\n")
	for _, tr := range task.Transitions {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", tr.From, tr.To, tr.Reason, tr.Mover)
	}
	table.WriteString("\n| stays | reason |\n|---|---|\n")
	for _, state := range task.States {
		for _, reason := range task.Stays[state] {
			fmt.Fprintf(&table, "| %s | %s |\n", state, reason)
		}
	}
	want := before + begin + table.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(raw), "run: go test ./internal/task -run LifecycleDocument -update")
}
