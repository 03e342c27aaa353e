package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ax-scheduler/ax/internal/natsbus"
)

// marked is a part of docs/events.md that is made: its name stands in the mark.
var marked = regexp.MustCompile(`(?s)<!-- made: ([a-z_ ]+) -->\n.*?<!-- end -->`)

// fillEvents fills in the tables and examples of docs/events.md; the text around them is written by hand.
func fillEvents(_ context.Context, root, now string) (string, error) {
	src, err := readSource(filepath.Join(root, "pkg", "events"))
	if err != nil {
		return "", err
	}
	var failed error
	text := marked.ReplaceAllStringFunc(now, func(part string) string {
		name := marked.FindStringSubmatch(part)[1]
		made, err := makePart(root, src, name)
		if err != nil {
			failed = cmp.Or(failed, fmt.Errorf("part %q: %w", name, err))
		}
		return "<!-- made: " + name + " -->\n" + made + "<!-- end -->"
	})
	return text, failed
}

func makePart(root string, src *source, name string) (string, error) {
	switch name {
	case "subjects":
		return subjectTable(), nil
	case "streams":
		return streamTable(), nil
	case "codes":
		var b strings.Builder
		b.WriteString("| code | means |\n|---|---|\n")
		for _, c := range src.beginning("Code") {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.value, cell(c.comment))
		}
		return b.String(), nil
	case "types":
		var b strings.Builder
		for _, c := range src.beginning("Type") {
			fmt.Fprintf(&b, "- `%s`\n", c.value)
		}
		return b.String(), nil
	}
	file, ok := strings.CutPrefix(name, "example ")
	if !ok {
		return "", fmt.Errorf("nothing makes this")
	}
	text, err := golden(root, file)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return "", err
	}
	if len(text) <= 120 {
		b.Reset()
		b.Write(text)
	}
	return "```json\n" + b.String() + "\n```\n", nil
}

func subjectTable() string {
	var b strings.Builder
	b.WriteString("| subject | stream | body | what |\n|---|---|---|---|\n")
	bodyOf := map[string]string{}
	for _, m := range messages {
		bodyOf[m.name] = m.body
	}
	for _, c := range channels {
		body := bodyOf[c.message]
		if strings.HasPrefix(c.id, "api") {
			body = cmp.Or(body, "(none)") + " -> " + bodyOf[c.reply]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", strings.NewReplacer("{", "<", "}", ">").Replace(c.address), c.stream, body, cell(c.description))
	}
	return b.String()
}

func streamTable() string {
	var b strings.Builder
	b.WriteString("| stream | subjects | kept | full means |\n|---|---|---|---|\n")
	for _, s := range natsbus.Streams(natsbus.Sizes{}, 1) {
		kept := "until handled"
		if strings.ToLower(s.Retention.String()) == "limits" {
			kept = "for everybody"
		}
		if s.MaxAge > 0 {
			kept += ", at most " + age(s.MaxAge)
		}
		full := "the oldest goes"
		if strings.Contains(strings.ToLower(s.Discard.String()), "new") {
			full = "new ones are refused"
		}
		if s.DiscardNewPerSubject {
			full += fmt.Sprintf(", also above %d on one subject", s.MaxMsgsPerSubject)
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s, at most %d MiB | %s |\n", s.Name, strings.Join(s.Subjects, "`, `"), kept, s.MaxBytes>>20, full)
	}
	return b.String()
}

func age(d time.Duration) string {
	if days := d / (24 * time.Hour); days > 0 {
		return fmt.Sprintf("%d days", days)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}
