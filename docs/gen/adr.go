package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const adrHead = `# Decisions

<!-- Made by go run ./docs/gen from the files beside this one. -->

What was decided, why, and what follows from it. A decision is not edited once it is in use: a newer one takes its place and says so. Each
has three paragraphs: **Decision**, **Why**, **Consequences**.

| | decision |
|---|---|
`

var (
	adrName  = regexp.MustCompile(`^(\d{4})-[a-z0-9-]+\.md$`)
	adrTitle = regexp.MustCompile(`^# (\d+)\. (.+)\n`)
)

// decisions makes the index of docs/adr. Numbers must rise by one, so that no two authors use the same.
func decisions(_ context.Context, root, _ string) (string, error) {
	dir := filepath.Join(root, "docs", "adr")
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(adrHead)
	n := 0
	for _, f := range files {
		if f.Name() == "README.md" {
			continue
		}
		n++
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return "", err
		}
		name, title := adrName.FindStringSubmatch(f.Name()), adrTitle.FindStringSubmatch(string(text))
		if name == nil || title == nil || name[1] != fmt.Sprintf("%04d", n) || title[1] != fmt.Sprint(n) {
			return "", fmt.Errorf("%s: should be named %04d-words.md and begin with \"# %d. \"", f.Name(), n, n)
		}
		fmt.Fprintf(&b, "| %d | [%s](%s) |\n", n, title[2], f.Name())
	}
	return b.String(), nil
}
