// Command gen writes the documents that are made from the code: docs/configuration.md, docs/asyncapi.yaml, the index of
// decisions, and the tables and examples in docs/events.md. Run it in the repository: go run ./docs/gen
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// generated is every document that is made, whole or in part, with what makes it from what it holds now.
var generated = map[string]func(ctx context.Context, root, now string) (string, error){
	"docs/configuration.md": configuration,
	"docs/asyncapi.yaml":    asyncAPI,
	"docs/events.md":        fillEvents,
	"docs/adr/README.md":    decisions,
}

func main() {
	if err := write(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context) error {
	root, err := repository()
	if err != nil {
		return err
	}
	for path, make := range generated {
		file := filepath.Join(root, path)
		now, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		text, err := make(ctx, root, string(now))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// repository is the folder with go.mod, here or above.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod here or above: run this inside of the repository")
		}
		dir = up
	}
}
