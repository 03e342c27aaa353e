package e2e

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

// defaultLease is what workers and the reaper have unless told otherwise.
const defaultLease = 30 * time.Second

// With the usual lease, a database that stands still for 12 s revives nothing and costs no task an attempt; a killed worker's tasks
// run again within the lease, the grace and one sweep of the reaper.
func TestTheUsualLeaseOutlastsAPauseAndEndsWithItsWorker(t *testing.T) {
	t.Parallel()
	db := stacktest.StartMongo(t, localstack.MongoOptions{}) // its own, because it is stopped
	w := newWorld(t, worldOptions{workers: 1, slots: 40, lease: defaultLease, mongoURI: db.URI(),
		env: []string{"AX_REAPER_BEAT=5s"}})

	const paused, n = 12 * time.Second, 20
	ids := w.submit(n, work{RunMs: int((paused + 4*time.Second).Milliseconds())})
	stacktest.Eventually(t, 30*time.Second, "all run", func() bool { return len(w.executions()) == n })
	require.NoError(t, syscall.Kill(db.PID(), syscall.SIGSTOP))
	<-time.After(paused)
	require.NoError(t, syscall.Kill(db.PID(), syscall.SIGCONT))
	for _, tk := range w.awaitEnds(ids, time.Minute) {
		require.Equal(t, task.Success, tk.State)
		require.Equal(t, 1, tk.Attempts)
		require.Zero(t, tk.Losses)
		require.Len(t, tk.History, 3, "submitted, claimed, succeeded")
	}

	// The reaper revives nothing for one lease after the pause, which is over before the lease of what is begun now.
	ids = w.submit(n, work{RunMs: 2000})
	stacktest.Eventually(t, 30*time.Second, "all run", func() bool { return len(w.executions()) == 2*n })
	w.killWorker(w.workers[0])
	w.startWorker(t.Context(), worldOptions{slots: 40})
	w.requireAllSucceeded(w.awaitEnds(ids, 2*time.Minute))
	var took []time.Duration
	died := w.deaths[w.workers[0].Name()]
	for _, r := range w.executions() {
		if r.Worker != w.workers[0].Name() {
			took = append(took, time.Duration(r.At-died))
		}
	}
	require.Len(t, took, n)
	slices.Sort(took)
	t.Logf("from a worker's death to the next start of its tasks: p50 %v, p95 %v, longest %v", took[n/2], took[n*95/100], took[n-1])
	require.Less(t, took[n-1], defaultLease+8*time.Second, "the lease, 1.5 s of grace, up to 2 s to the sweep, and the way to a worker")
}
