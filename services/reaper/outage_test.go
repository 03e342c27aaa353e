package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// TestDatabaseAwayRevivesNothing takes the database away for longer than leases last. When it is back, all leases look over;
// those of live workers must not be believed.
func TestDatabaseAwayRevivesNothing(t *testing.T) {
	for name, away := range map[string]func(*testing.T, *localstack.Mongo){
		"paused for 12 s": func(t *testing.T, m *localstack.Mongo) {
			require.NoError(t, syscall.Kill(m.PID(), syscall.SIGSTOP))
			after(12 * time.Second)
			require.NoError(t, syscall.Kill(m.PID(), syscall.SIGCONT))
		},
		"killed for 12 s": func(t *testing.T, m *localstack.Mongo) {
			require.NoError(t, m.Kill())
			after(12 * time.Second)
			require.NoError(t, m.Restart(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lease = 9 * time.Second
			mongo := stacktest.StartMongo(t, localstack.MongoOptions{})
			r := newRigOn(t, mongo.URI(), "ax")
			s := r.reaper(lease)
			r.trusting(s)
			live, dead := r.submit("live", 50), r.submit("dead", 10)
			lost, _ := r.beat("alive", lease, r.claim("alive", lease, live...))
			r.claim("gone", lease, dead...)

			away(t, mongo)
			var back time.Time
			stacktest.Eventually(t, patience, "the database answers", func() bool {
				var err error
				back, _, err = r.db.ServerTime(t.Context())
				return err == nil
			})
			for _, id := range dead {
				_, at := r.awaitChange(id, task.ReasonLeaseExpired)
				require.GreaterOrEqual(t, at.Sub(back), lease-2*time.Second, "%s was revived before live workers could beat", id)
			}
			require.Zero(t, lost.Load())
			for _, id := range live {
				require.Equal(t, task.Running, r.get(id).State)
			}
			require.EqualValues(t, len(dead), stacktest.Metric(t, s, "ax_reaper_revived_total"))
		})
	}
}

func TestNewLeadersDoNotSweepForBeingNew(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second
	r := newRig(t)
	ids := r.submit("dead", 3)
	r.claim("gone", time.Second, ids[0])
	began, _, err := r.db.ServerTime(t.Context())
	require.NoError(t, err)
	first := r.reaper(lease)
	_, at := r.awaitChange(ids[0], task.ReasonLeaseExpired)
	require.GreaterOrEqual(t, at.Sub(began), lease, "the first reaper ever waits for one lease")
	require.EqualValues(t, 1, stacktest.Metric(t, first, "ax_reaper_pauses_total", "new leader"))

	// A restart in order: what the leader saw last stands in its lock.
	require.NoError(t, first.Stop(20*time.Second))
	r.claim("gone", time.Second, ids[1])
	second := r.reaper(lease)
	r.awaitChange(ids[1], task.ReasonLeaseExpired)
	require.Zero(t, stacktest.Metric(t, second, "ax_reaper_pauses_total"))

	// The leader is killed; the one beside it has been watching.
	standby := r.reaper(lease)
	watched := time.Now()
	stacktest.Eventually(t, patience, "a lease has passed", func() bool { return time.Since(watched) > lease+time.Second })
	require.NoError(t, second.Kill())
	r.claim("gone", time.Second, ids[2])
	r.awaitChange(ids[2], task.ReasonLeaseExpired)
	require.Zero(t, stacktest.Metric(t, standby, "ax_reaper_pauses_total"))
}

// TestDatabaseClockSteps moves the database's clock an hour forward and back again under live and dead workers.
func TestDatabaseClockSteps(t *testing.T) {
	if libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1"); len(libs) == 0 {
		t.Skip("the system package faketime is not installed")
	}
	t.Parallel()
	const lease = 6 * time.Second
	clock := filepath.Join(t.TempDir(), "clock")
	step := func(offset string) { require.NoError(t, os.WriteFile(clock, []byte(offset), 0o600)) }
	step("+0")
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{FaketimeFile: clock})
	r := newRigOn(t, mongo.URI(), "ax")
	s := r.reaper(lease)
	r.trusting(s)
	long := "24h" // a deadline is the database's time, so an attempt that an hour's step takes past its deadline ends
	live, dead := r.submit("live", 20, func(s *events.Submit) { s.Timeout = &long }), r.submit("dead", 5)
	lost, _ := r.beat("alive", lease, r.claim("alive", lease, live...))
	r.claim("gone", lease, dead...)

	step("+3600")
	stepped := time.Now()
	for _, id := range dead {
		r.awaitChange(id, task.ReasonLeaseExpired)
		require.Greater(t, time.Since(stepped), lease-2*time.Second, "a clock that jumps ahead ends no lease")
	}
	require.Zero(t, lost.Load())

	stacktest.Eventually(t, patience, "this process has noticed the step", func() bool {
		now, _, err := r.db.Now()
		real, _, err2 := r.db.ServerTime(t.Context())
		return err == nil && err2 == nil && real.Sub(now).Abs() < time.Second
	})
	ahead := r.submit("ahead", 5) // created in an hour
	r.claim("gone", lease, dead...)
	step("+0")
	for _, id := range dead {
		var got *task.Task
		stacktest.Eventually(t, patience, "its lease does not last an hour longer", func() bool {
			got = r.get(id)
			return got.Losses == 2
		})
	}
	for _, id := range ahead {
		stacktest.Eventually(t, patience, "it does not start an hour late", func() bool {
			now, _, err := r.db.ServerTime(t.Context())
			require.NoError(t, err)
			return !r.get(id).ScheduledAt.After(now)
		})
	}
	require.Zero(t, lost.Load())
	for _, id := range live {
		require.Equal(t, task.Running, r.get(id).State)
	}
	require.Positive(t, stacktest.Metric(t, s, "ax_reaper_mended_total"))
}
