// Package e2e drives the real programs as processes, kills them, and compares what ax says with the ledgers of the handlers.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

// bin is the folder with the programs under test.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ax-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)
	bin = dir
	if err := build(dir, "./cmd/ax", "./services/...", "./test/natsd", "./test/ledgerworker"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stacktest.Main(m)
}

// build builds programs of this module into a folder.
func build(dir string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", dir + string(filepath.Separator)}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}
