// Package docs holds the documentation and the tests that keep it true.
package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = ".."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(text)
}

// pages are all documents, by their path in the repository.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md", "examples/*/*.md", "examples/*/data/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, f := range found {
			rel, err := filepath.Rel(root, f)
			require.NoError(t, err)
			out = append(out, rel)
		}
	}
	require.Greater(t, len(out), 10)
	return out
}

// sources are the texts of the Go files below a folder, tests or the others.
func sources(t *testing.T, dir string, tests bool) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") != tests {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	require.NoError(t, err)
	return all.String()
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence    = regexp.MustCompile("(?ms)^```.*?^```")
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	// A code span that looks like a path in the repository: it begins with one of its folders or names a file at its root.
	pathLike = regexp.MustCompile(`^((bench|cmd|deploy|docs|examples|internal|pkg|scripts|services|test)(/[A-Za-z0-9_.-]+)*/?|Makefile|LICENSE|NOTICE|[A-Z]+\.md|go\.mod)$`)
	notSlug  = regexp.MustCompile(`[^a-z0-9 _-]`)
)

func TestLinksAndPathsLead(t *testing.T) {
	checked := 0
	for _, page := range pages(t) {
		text := fence.ReplaceAllString(read(t, page), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			checked++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			require.FileExists(t, existing(file), "%s: link %s", page, m[1])
			if anchor != "" {
				require.Contains(t, anchors(read(t, file)), anchor, "%s: link %s", page, m[1])
			}
		}
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			if !pathLike.MatchString(m[1]) || strings.HasPrefix(m[1], "test/") && page == "CHANGELOG.md" {
				continue
			}
			checked++
			_, err := os.Stat(filepath.Join(root, m[1]))
			require.NoError(t, err, "%s names %s", page, m[1])
		}
	}
	require.Greater(t, checked, 50)
}

// existing is the path to check for a link: a folder counts when it has a page or anything else.
func existing(path string) string {
	full := filepath.Join(root, path)
	if info, err := os.Stat(full); err == nil && info.IsDir() {
		entries, err := os.ReadDir(full)
		for _, e := range entries {
			if err == nil && !e.IsDir() {
				return filepath.Join(full, e.Name())
			}
		}
	}
	return full
}

// anchors are those that headings have.
func anchors(text string) []string {
	var out []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return out
}

var named = regexp.MustCompile("`([a-z0-9/]+): (Test[A-Za-z0-9_]+)`")

// anyTest finds the name of a test in whatever form.
var anyTest = regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9_]*`)

func requireTest(t *testing.T, folder, name string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	require.NoError(t, err)
	found := slices.ContainsFunc(files, func(f string) bool {
		code, err := os.ReadFile(f)
		return err == nil && strings.Contains(string(code), "\nfunc "+name+"(t *testing.T)")
	})
	require.True(t, found, "%s has no test %s", folder, name)
}

// Seventy rows, each passing by tests that exist or open for a reason, and counted right.
func TestScenariosAreCounted(t *testing.T) {
	text := read(t, "docs/scenarios.md")
	var want []string
	for _, list := range []struct {
		prefix string
		last   int
	}{{"", 40}, {"M", 25}, {"E", 5}} {
		for i := range list.last {
			want = append(want, fmt.Sprint(list.prefix, i+1))
		}
	}
	counts := map[string]int{"passing": 0, "open": 0, "never": 0}
	var got []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([ME]?\d+) \| ([^|]+) \| (passing|open|never)(: [^|]+)? \| ([^|]*) \|$`).FindAllStringSubmatch(text, -1) {
		got = append(got, row[1])
		counts[row[3]]++
		tests := named.FindAllStringSubmatch(row[5], -1)
		require.Equal(t, row[3] == "passing", row[4] == "", "%s: only what passes needs no reason", row[1])
		require.True(t, row[3] != "passing" || len(tests) > 0, "%s passes by nothing", row[1])
		for _, m := range tests {
			requireTest(t, m[1], m[2])
		}
	}
	require.Equal(t, want, got)
	require.Contains(t, text, fmt.Sprintf("Passing: %d. Open: %d. Never applies: %d.", counts["passing"], counts["open"], counts["never"]))
}

func TestEveryTestThatAGuaranteeNamesExists(t *testing.T) {
	text := read(t, "docs/guarantees.md")
	parts := strings.Split(text, "\n## ")
	var guarantees int
	for _, part := range parts {
		if !regexp.MustCompile(`^G\d+ `).MatchString(part) {
			continue
		}
		guarantees++
		tests := named.FindAllStringSubmatch(part, -1)
		require.GreaterOrEqual(t, len(tests), 3, strings.SplitN(part, "\n", 2)[0])
		for _, m := range tests {
			requireTest(t, m[1], m[2])
		}
	}
	require.Equal(t, 12, guarantees)
	require.Empty(t, anyTest.FindAllString(named.ReplaceAllString(text, ""), -1), "named without its folder, and so not looked up")
}

// metricsOf tells where the metrics of a part are registered: ax_<part>_<what>.
var metricsOf = map[string]string{
	"submitter": "services/submitter", "dispatcher": "services/dispatcher", "reaper": "services/reaper", "notifier": "services/notifier",
	"cron": "services/cron", "bus": "internal/natsbus", "lead": "internal/lead", "worker": "pkg/worker",
}

func TestEveryMetricAndLogLineInTheRunbooksExists(t *testing.T) {
	text := read(t, "docs/operations.md")
	metrics := regexp.MustCompile(`\bax_([a-z]+)_([a-z_]+)`).FindAllStringSubmatch(text, -1)
	require.Greater(t, len(metrics), 10)
	for _, m := range metrics {
		dir, ok := metricsOf[m[1]]
		require.True(t, ok, "no part registers %s", m[0])
		code := sources(t, dir, false)
		// The name stands in the code whole, or is put together from its part and the rest, with or without _total.
		require.True(t, slices.ContainsFunc([]string{m[0], m[2], strings.TrimSuffix(m[2], "_total")}, func(name string) bool {
			return strings.Contains(code, `"`+name+`"`)
		}), "%s does not register %s", dir, m[0])
	}

	lines := regexp.MustCompile(`msg="([^"\n]+)"`).FindAllStringSubmatch(text, -1)
	require.Greater(t, len(lines), 10)
	code := sources(t, "services", false) + sources(t, "internal", false) + sources(t, "pkg", false)
	for _, m := range lines {
		require.True(t, strings.Contains(code, `"`+strings.TrimSuffix(m[1], "...")), "no part logs %q", m[1])
	}
}

func TestTheReadmeShowsTheQuickstartAsItIs(t *testing.T) {
	_, shown, ok := strings.Cut(read(t, "examples/quickstart/main.go"), "\npackage main\n")
	require.True(t, ok)
	require.Contains(t, read(t, "README.md"), "```go\npackage main\n"+shown+"```\n")
}
