// Package e2e drives the real programs as processes, kills them, and compares what ax says with the ledgers of the handlers.
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/test/programs"
)

// root is the module's folder.
var root = filepath.Join("..", "..")

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
	if err := programs.Build(root, dir, "./cmd/ax", "./services/...", "./test/natsd", "./test/ledgerworker"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stacktest.Main(m)
}
