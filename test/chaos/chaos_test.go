package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/test/programs"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// A short script, the same at each run: `make chaos` plays longer ones.
func TestASelectionOfFaultsBreaksNoPromise(t *testing.T) {
	if os.Getenv("AX_MONGO_URI") != "" {
		t.Skip("needs a database of its own; AX_MONGO_URI is set")
	}
	bin := filepath.Join(t.TempDir(), "bin")
	require.NoError(t, programs.Shifted(filepath.Join("..", ".."), bin, programList...))
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	var out strings.Builder
	s := newScript(selected, 25*time.Second)
	s.print(&out)
	r, err := rehearse(ctx, bin, t.TempDir(), s, &out)
	if err == nil {
		r.print(&out)
	}
	t.Log(out.String())
	require.NoError(t, err)
	require.Empty(t, r.violations)
	require.Greater(t, r.tasks, 100)
	require.Positive(t, r.broken, "workers were struck while they worked")
}

// selected is a seed whose first faults stop one worker and kill two, cut connections, delete NATS's store and kill the database.
const selected = 9
