package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/client"
)

// Every service is killed in turn during a run of 5,000 tasks, a worker too, and at the end NATS loses its store.
func TestEveryServiceKilledInTurnAndNATSWiped(t *testing.T) {
	w := newWorld(t, worldOptions{workers: 3, slots: 40})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()

	const n = 5000
	ids := make([]string, 0, n)
	publish := func(count int) {
		tasks := make([]client.Task, count)
		for i := range tasks {
			payload := work{RunMs: 20}
			if i%50 == 0 {
				payload.Fail = 1
			}
			tasks[i] = client.NewTask(workType, payload, client.Retry(200*time.Millisecond, 2, time.Second, 0.5))
			ids = append(ids, tasks[i].ID())
		}
		for _, err := range w.client.Publish(ctx, tasks...) {
			require.NoError(t, err)
		}
	}
	share := n / len(localstack.ServiceNames)
	for _, name := range localstack.ServiceNames {
		publish(share)
		s := w.system.Service(name)
		require.NoError(t, s.Kill())
		require.NoError(t, s.Start(ctx))
	}
	w.killWorker(w.workers[0])
	w.awaitStored(ids, 2*time.Minute)
	// These are stored when submit returns. Their signals are in NATS, or half of them, when it loses its store.
	ids = append(ids, w.submit(400, work{RunMs: 1500})...)
	require.Less(t, w.ended(), len(ids), "work is left for the time after")
	require.NoError(t, w.nats.Wipe(ctx))

	ended := w.awaitEnds(ids, 3*time.Minute)
	runs := w.requireAllSucceeded(ended)
	require.GreaterOrEqual(t, len(runs), len(ids)+n/50)
	require.NoError(t, w.system.WaitReady(ctx))
}

// With no dispatcher at all, workers find their tasks by themselves.
func TestTasksRunWithoutADispatcher(t *testing.T) {
	w := newWorld(t, worldOptions{services: []string{"submitter", "reaper", "notifier", "cron"}})
	ids := w.submit(300, work{RunMs: 5})
	ids = append(ids, w.submit(20, work{Fail: 1}, client.Retry(200*time.Millisecond, 2, time.Second, 0))...)
	ids = append(ids, w.submit(20, work{}, client.Delay(3*time.Second))...)
	w.requireAllSucceeded(w.awaitEnds(ids, 2*time.Minute))
}

// A dead worker's tasks run again once their leases are over, and the loss is on record.
func TestAKilledWorkersTasksComeBack(t *testing.T) {
	w := newWorld(t, worldOptions{workers: 1, slots: 10})
	ids := w.submit(10, work{RunMs: 3000})
	stacktest.Eventually(t, 30*time.Second, "all ten run", func() bool { return len(w.executions()) == 10 })
	w.killWorker(w.workers[0])
	w.startWorker(t.Context(), worldOptions{slots: 10})
	ended := w.awaitEnds(ids, time.Minute)
	w.requireAllSucceeded(ended)
	for _, tk := range ended {
		require.Equal(t, 2, tk.Attempts)
		require.Equal(t, 1, tk.Losses)
		require.Zero(t, tk.Failures)
	}
}

// awaitStored waits until every task is in the database.
func (w *world) awaitStored(ids []string, most time.Duration) {
	w.t.Helper()
	next := 0
	stacktest.Eventually(w.t, most, "all tasks stored", func() bool {
		for ; next < len(ids); next++ {
			if _, err := w.store.Get(w.t.Context(), ids[next]); err != nil {
				return false
			}
		}
		return true
	})
}

// ended is how many completion events have come.
func (w *world) ended() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ends)
}
