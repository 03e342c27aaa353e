package e2e

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/test/programs"
)

// offsetPrograms builds the services and the ledger worker with a clock that programs.Offset shifts.
func offsetPrograms(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(bin, "offset")
	offsetOnce.Do(func() { offsetErr = programs.Shifted(root, dir, "./services/...", "./test/ledgerworker") })
	require.NoError(t, offsetErr)
	return dir
}

var (
	offsetOnce sync.Once
	offsetErr  error
)
