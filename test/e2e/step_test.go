package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
)

// The database's own clock is stepped by an hour in the middle of a run, there and back: nothing runs twice at the same time,
// and nothing is stuck.
func TestDatabaseClockStepsAnHour(t *testing.T) {
	t.Parallel()
	if libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1"); len(libs) == 0 {
		t.Skip("needs the system package faketime")
	}
	clock := filepath.Join(t.TempDir(), "clock")
	step := func(to string) {
		// Replaced whole, so that the server never reads half of it.
		require.NoError(t, os.WriteFile(clock+".new", []byte(to), 0o644))
		require.NoError(t, os.Rename(clock+".new", clock))
	}
	step("+0")
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{FaketimeFile: clock})
	w := newWorld(t, worldOptions{mongoURI: mongo.URI(), workers: -1, lease: 12 * time.Second}) // such a server is slow: beats take their time

	for _, to := range []string{"+3600", "+0"} {
		began := time.Now()
		o := worldOptions{slots: 6}
		steady, doomed := w.startWorker(t.Context(), o), w.startWorker(t.Context(), o)
		// In backoff, not due for a while, when the clock steps.
		retried := w.submit(2, work{Fail: 1}, client.Retry(20*time.Second, 1, time.Minute, 0))
		stacktest.Eventually(t, time.Minute, "they have failed once", func() bool {
			for _, id := range retried {
				one, err := w.store.Get(t.Context(), id)
				require.NoError(t, err)
				if one.Failures == 0 || one.State == "running" {
					return false
				}
			}
			return true
		})
		running := w.submit(12, work{RunMs: 18_000}) // longer than a lease: beats keep them
		w.awaitRunning(running)
		pending := w.submit(6, work{RunMs: 100})
		w.killWorker(doomed)
		free := w.startWorker(t.Context(), o) // takes at once whatever is handed out a second time
		step(to)

		all := append(append(running, pending...), retried...)
		runs := byTask(w.requireAllSucceeded(w.awaitEnds(all, 2*time.Minute)))
		t.Logf("the clock stepped to %s: all ended %v after the beginning", to, time.Since(began).Round(time.Second))
		again := 0
		for _, id := range running {
			e := runs[id]
			if e[0].Worker == doomed.Name() {
				again++
				require.Greater(t, len(e), 1)
			}
			one, err := w.store.Get(t.Context(), id)
			require.NoError(t, err)
			for _, change := range one.History {
				require.NotEqual(t, task.ReasonTimeout, change.Reason, "half an hour has passed for the database alone: %+v", one.History)
			}
		}
		require.Positive(t, again, "the killed worker had work")
		require.NoError(t, steady.Stop(25*time.Second))
		require.NoError(t, free.Stop(25*time.Second))
	}
}
