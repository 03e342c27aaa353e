package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/test/programs"
)

// The library leaves goroutines behind where a narrow connection is closed while data is on its way.
func TestMain(m *testing.M) {
	const library = "github.com/Shopify/toxiproxy/v2"
	stacktest.Main(m, goleak.IgnoreAnyFunction(library+"/toxics.(*ToxicStub).Run"), goleak.IgnoreAnyFunction(library+".(*ToxicLink).read"),
		goleak.IgnoreAnyFunction(library+".(*ToxicLink).write"))
}

// Three short scripts, the same at each run and side by side: `make chaos` plays longer ones.
func TestASelectionOfFaultsBreaksNoPromise(t *testing.T) {
	if os.Getenv("AX_MONGO_URI") != "" {
		t.Skip("needs databases of its own; AX_MONGO_URI is set")
	}
	bin := filepath.Join(t.TempDir(), "bin")
	require.NoError(t, programs.Shifted(filepath.Join("..", ".."), bin, programList...))
	for _, seed := range selected {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			var out strings.Builder
			s := newScript(seed, selectionLasts)
			s.print(&out)
			r, err := rehearse(ctx, bin, t.TempDir(), s, &out)
			if err == nil {
				r.print(&out)
			}
			t.Log(out.String())
			require.NoError(t, err)
			require.Empty(t, r.violations)
			require.Greater(t, r.tasks, 50)
			require.Positive(t, r.broken, "workers were struck while they worked")
		})
	}
}

// The scripts of the selection, which together have every kind of fault, and each of which strikes workers more than once.
var selected = []uint64{1, 2, 3}

const selectionLasts = time.Minute
