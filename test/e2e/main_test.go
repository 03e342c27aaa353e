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
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./cmd/ax", "./services/...", "./test/natsd", "./test/ledgerworker")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		os.Exit(1)
	}
	stacktest.Main(m)
}
