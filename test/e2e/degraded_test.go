package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Each degraded mode shows in a metric, a log line and ax status, and work goes on as far as it can.

func TestWithoutChangeStreamsSweepsDoTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{mongoURI: stacktest.StartMongo(t, localstack.MongoOptions{Standalone: true}).URI()})
	w.requireAllSucceeded(w.awaitEnds(w.submit(50, work{}), time.Minute))
	dispatcher, notifier := w.system.Service("dispatcher"), w.system.Service("notifier")
	require.EqualValues(t, 1, stacktest.Metric(t, dispatcher, "ax_dispatcher_degraded_bool"))
	require.EqualValues(t, 1, stacktest.Metric(t, notifier, "ax_notifier_degraded_bool"))
	require.Contains(t, dispatcher.Output(), "degraded: new tasks are found by the sweep alone")
	require.Contains(t, notifier.Output(), "the database has no change streams; events are found by sweeps and come late")
	w.awaitAttention(t, "dispatcher", "new tasks are found by the sweep alone")
	w.awaitAttention(t, "notifier", "events are found by sweeps because the database has no change streams")
}

func TestServicesThatAreMissingAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{services: []string{"submitter", "reaper", "notifier"}})
	w.requireAllSucceeded(w.awaitEnds(w.submit(20, work{}), time.Minute))
	w.awaitAttention(t, "no dispatcher is there: workers look for tasks in the database, so they start later")
	w.awaitAttention(t, "no cron is there: schedules do not fire")
	require.NoError(t, w.system.Service("notifier").Kill())
	w.awaitAttention(t, "no notifier has been seen for ", "no events are published")
	require.NoError(t, w.system.Service("notifier").Start(t.Context()))
	stacktest.Eventually(t, time.Minute, "the notifier is back", func() bool {
		return !strings.Contains(w.ax(t, "", "status").out, "no notifier")
	})
}

func TestDatabaseAwayNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{})
	w := newWorld(t, worldOptions{mongoURI: mongo.URI()})
	require.NoError(t, mongo.Kill())
	nc := w.plain()
	submission := client.NewTask(workType, work{})
	for _, err := range w.client.Publish(t.Context(), submission) {
		require.NoError(t, err) // NATS has it
	}
	submitter := w.system.Service("submitter")
	stacktest.Eventually(t, time.Minute, "the submitter notices", func() bool {
		return stacktest.Metric(t, submitter, "ax_submitter_failing_bool") == 1
	})
	require.Contains(t, submitter.Output(), "cannot store tasks; submissions wait")
	require.NotEmpty(t, reasonOf(waitingFor(t, submitter), "database"))
	require.EqualValues(t, 1, w.queued(nc), "it is not acknowledged")
	shown := w.ax(t, "", "status")
	require.Equal(t, 1, shown.code, shown.out)
	require.Contains(t, shown.errs, "the database did not answer")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, mongo.Restart(ctx))
	w.requireAllSucceeded(w.awaitEnds([]string{submission.ID()}, time.Minute))
	stacktest.Eventually(t, time.Minute, "all is well again", func() bool {
		var stats events.StatsReply
		shown := w.ax(t, "", "status", "--json")
		return shown.code == 0 && json.Unmarshal([]byte(shown.out), &stats) == nil && len(stats.Attention) == 0
	})
}

func TestNATSAwayStoredTasksRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	ids := w.submit(50, work{}, client.Delay(3*time.Second))
	require.NoError(t, w.nats.Kill())
	stacktest.Eventually(t, time.Minute, "workers run them without signals", func() bool {
		for _, id := range ids {
			if stored, err := w.store.Get(t.Context(), id); err != nil || stored.State != task.Success {
				return false
			}
		}
		return true
	})
	found := 0.0
	for _, worker := range w.workers {
		found += stacktest.Metric(t, worker, "ax_worker_tasks_found_total")
	}
	require.Positive(t, found)
	notifier := w.system.Service("notifier")
	stacktest.Eventually(t, time.Minute, "the notifier says what it waits for", func() bool {
		return reasonOf(waitingFor(t, notifier), "NATS") != ""
	})
	require.Contains(t, notifier.Output(), "NATS is out of reach, reconnecting")
	shown := w.ax(t, "", "status")
	require.Equal(t, 1, shown.code, shown.out)
	require.Contains(t, shown.errs, w.nats.URL())
	services, err := w.store.Services(t.Context())
	require.NoError(t, err)
	require.Contains(t, conditionsOf(services, "notifier"), "waits for NATS", "it is on record for when ax status can be asked again")

	require.NoError(t, w.nats.Start(t.Context()))
	w.requireAllSucceeded(w.awaitEnds(ids, time.Minute))
}

func TestAFullLaneIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: -1})
	w.submit(2000, work{})
	dispatcher := w.system.Service("dispatcher")
	stacktest.Eventually(t, time.Minute, "the lane is full", func() bool { return stacktest.Metric(t, dispatcher, "ax_dispatcher_lanes_full_bool") == 1 })
	w.awaitAttention(t, "dispatcher", "lanes hold as many signals as they may, and what else is due waits in the database")
	stacktest.Eventually(t, time.Minute, "it is logged", func() bool {
		return strings.Contains(dispatcher.Output(), "lanes hold as many signals as they may; what else is due waits in the database")
	})
}

func TestAnOpenBreakerIsShown(t *testing.T) {
	t.Parallel()
	var proxy *natsProxy
	w := newWorld(t, worldOptions{envOf: func(natsURL string) map[string][]string {
		proxy = startProxy(t, natsURL)
		proxy.prefix = "ax.work."
		return map[string][]string{"dispatcher": {"AX_NATS_URL=" + proxy.URL()}}
	}})
	w.requireAllSucceeded(w.awaitEnds(w.submit(10, work{}), time.Minute))
	proxy.swallow.Store(true) // NATS answers, but no signal is acknowledged
	dispatcher := w.system.Service("dispatcher")
	var ids []string
	var last time.Time
	stacktest.Eventually(t, time.Minute, "a breaker opens", func() bool {
		if time.Since(last) > 500*time.Millisecond { // each call fails when its time is over, and several have to
			ids, last = append(ids, w.submit(1, work{})...), time.Now()
		}
		return stacktest.Metric(t, dispatcher, "ax_bus_breaker_state") > 0
	})
	require.Contains(t, dispatcher.Output(), "breaker changed")
	w.awaitAttention(t, "dispatcher", "the circuit breaker ", " is not closed")
	w.requireAllSucceeded(w.awaitEnds(ids, time.Minute)) // workers find them
	proxy.swallow.Store(false)
	stacktest.Eventually(t, time.Minute, "it closes", func() bool {
		w.submit(1, work{}) // something has to be published for it to learn that it can be
		return stacktest.Metric(t, dispatcher, "ax_bus_breaker_state") == 0
	})
	stacktest.Eventually(t, time.Minute, "all is well again", func() bool { return !strings.Contains(w.ax(t, "", "status").out, "breaker") })
}

func TestALostPlaceInTheStreamCostsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.requireAllSucceeded(w.awaitEnds(w.submit(10, work{}), time.Minute))
	readers := []string{"dispatcher", "notifier"}
	for _, name := range readers {
		require.NoError(t, w.system.Service(name).Kill())
	}
	// What the server cannot continue from, as after its oplog has rolled over.
	useless, err := bson.Marshal(bson.D{{Key: "_data", Value: "82000000010000000129295A10"}})
	require.NoError(t, err)
	for _, name := range readers {
		require.NoError(t, w.store.SaveCursor(t.Context(), name, useless, time.Time{}, 1))
	}
	ids := w.submit(100, work{})
	for _, name := range readers {
		require.NoError(t, w.system.Service(name).Start(t.Context()))
	}
	w.requireAllSucceeded(w.awaitEnds(append(ids, w.submit(100, work{})...), time.Minute))
	dispatcher, notifier := w.system.Service("dispatcher"), w.system.Service("notifier")
	stacktest.Eventually(t, time.Minute, "the loss is counted", func() bool {
		return stacktest.Metric(t, dispatcher, "ax_dispatcher_history_lost_total") > 0 && stacktest.Metric(t, notifier, "ax_notifier_rebuilds_total") > 0
	})
	require.Contains(t, dispatcher.Output(), "change stream history lost: everything due is looked at again")
	require.Contains(t, notifier.Output(), "publishing again from history")
	stacktest.Eventually(t, time.Minute, "both follow the changes again", func() bool {
		return stacktest.Metric(t, dispatcher, "ax_dispatcher_degraded_bool") == 0 && stacktest.Metric(t, notifier, "ax_notifier_degraded_bool") == 0
	})
}

// awaitAttention waits until ax status has a line for attention with all the parts.
func (w *world) awaitAttention(t *testing.T, parts ...string) {
	t.Helper()
	stacktest.Eventually(t, time.Minute, "ax status says "+strings.Join(parts, " ... "), func() bool {
		for _, line := range strings.Split(w.ax(t, "", "status").out, "\n") {
			text, ok := strings.CutPrefix(line, "attention: ")
			for _, part := range parts {
				ok = ok && strings.Contains(text, part)
			}
			if ok {
				return true
			}
		}
		return false
	})
}

func conditionsOf(services []task.ServiceInfo, name string) string {
	var all []string
	for _, s := range services {
		if s.Service == name {
			all = append(all, s.Conditions...)
		}
	}
	return strings.Join(all, "; ")
}
