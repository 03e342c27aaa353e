// Command mutations takes the guards of ax away, one at a time, and runs the test that must then fail. Sources are not touched: Go's
// build overlay shows the changed file to the compiler. It prints the table of docs/mutations.md, and exits with 1 when a test passed
// without the guard that it is said to hold.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// testTimeout bounds one test; without its guard it may wait for what never comes.
const testTimeout = 4 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "mutations: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutations", flag.ContinueOnError)
	only := flags.String("only", "", "regular expression of the guarantee, guard or test; empty: all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ax-mutations-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var survived []string
	for _, m := range list {
		if !chosen.MatchString(m.guarantee + " " + m.guard + " " + m.test) {
			continue
		}
		said, err := m.try(ctx, dir)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			survived, said = append(survived, m.guard), "NOT TRIED: "+err.Error()
		case said == "":
			survived, said = append(survived, m.guard), "PASSED"
		}
		fmt.Printf("%s | %s: %s\n", m.row(), m.test, said)
	}
	if len(survived) > 0 {
		return fmt.Errorf("%d guards were not seen to be missed: %s", len(survived), strings.Join(survived, "; "))
	}
	return nil
}

// row is the mutation as docs/mutations.md shows it.
func (m mutation) row() string {
	return fmt.Sprintf("| %s | %s | `%s` | `%s: %s` |", m.guarantee, m.guard, m.file, m.pkg, m.test)
}

// broken returns the file without the guard.
func (m mutation) broken(root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.old); m.old == "" || n != 1 {
		return "", fmt.Errorf("%s: %q stands %d times in it, want once", m.file, m.old, n)
	}
	return strings.Replace(string(source), m.old, m.new, 1), nil
}

// try runs the test without the guard. It returns the first thing that the test complained about; empty: it passed.
func (m mutation) try(ctx context.Context, dir string) (string, error) {
	source, err := m.broken(".")
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	broken, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: broken}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(broken, []byte(source), 0o600), os.WriteFile(overlay, list, 0o600)); err != nil {
		return "", err
	}
	pkg := "./" + m.pkg
	var out bytes.Buffer
	compiled := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-vet=off", "-run", "^$", pkg)
	compiled.Stdout, compiled.Stderr = &out, &out
	if err := compiled.Run(); err != nil {
		return "", fmt.Errorf("it does not compile without the guard: %w\n%s", err, out.Bytes())
	}
	out.Reset()
	ctx, cancel := context.WithTimeout(ctx, testTimeout+time.Minute)
	defer cancel()
	// Programs that the test builds itself are built without the guard, too.
	test := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-timeout", testTimeout.String(), "-run", "^"+m.test+"$", pkg)
	test.Env = append(os.Environ(), "GOFLAGS=-overlay="+overlay)
	test.Stdout, test.Stderr = &out, &out
	switch err := test.Run(); {
	case err == nil && strings.Contains(out.String(), "no tests to run"):
		return "", fmt.Errorf("there is no test %s in %s", m.test, m.pkg)
	case err == nil:
		return "", nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	}
	return complaint(out.String()), nil
}

// complaint is what a failed test says first.
func complaint(out string) string {
	for _, sign := range []string{"Error:", "panic: ", "--- FAIL"} {
		if _, after, found := strings.Cut(out, sign); found {
			line, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
			return strings.TrimSpace(line)
		}
	}
	return "failed"
}
