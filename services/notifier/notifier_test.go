package main

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/events"
)

const patience = 60 * time.Second

// parts runs do on four parts of the ids side by side.
func parts(ids []string, do func([]string)) {
	var all sync.WaitGroup
	n := (len(ids) + 3) / 4
	for len(ids) > 0 {
		part := ids[:min(n, len(ids))]
		ids = ids[len(part):]
		all.Go(func() { do(part) })
	}
	all.Wait()
}

func TestEventsOfWholeLives(t *testing.T) {
	r := newRig(t)
	s := r.notifier()
	stacktest.AwaitLeading(t, s)
	tape, _ := r.record()
	ids := r.submit("life", 2000)
	parts(ids, r.live)
	tape.awaitAll(patience, ids...)
	require.Zero(t, tape.repeats())
	r.requireDeadLetters(ids[:200]...)
	require.Zero(t, stacktest.Metric(t, s, "ax_notifier_gaps_total"))
	stacktest.Eventually(t, 10*time.Second, "the place is stored", func() bool {
		token, at, err := r.db.LoadCursor(t.Context(), "notifier")
		now, _, _ := r.db.Now()
		return err == nil && token != nil && now.Sub(at) < 30*time.Second
	})
}

func TestKilledNotifierRepeatsAndLosesNothing(t *testing.T) {
	r := newRig(t)
	s := r.notifier()
	stacktest.AwaitLeading(t, s)
	tape, _ := r.record()
	ids := r.submit("life", 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		parts(ids, r.live)
	}()
	for kills := 0; ; kills++ {
		before := stacktest.Metric(t, s, "ax_notifier_events_total")
		stacktest.Eventually(t, patience, "it publishes", func() bool {
			select {
			case <-done:
				return true
			default:
				return stacktest.Metric(t, s, "ax_notifier_events_total") > before+200
			}
		})
		select {
		case <-done:
			require.Positive(t, kills, "it was killed while it had work")
			tape.awaitAll(patience, ids...)
			r.requireDeadLetters(ids[900:]...)
			return
		default:
		}
		require.NoError(t, s.Kill())
		require.NoError(t, s.Start(t.Context()))
	}
}

func TestFormerLeaderChangesNothing(t *testing.T) {
	r := newRig(t)
	first := r.notifier()
	stacktest.AwaitLeading(t, first)
	tape, _ := r.record()
	ids := r.submit("early", 200)
	r.live(ids)
	tape.awaitAll(patience, ids...)

	second := r.notifier()
	more := r.submit("late", 400)
	require.NoError(t, first.Signal(syscall.SIGSTOP)) // paused in the middle, its lock runs out
	stacktest.AwaitLeading(t, second)
	r.live(more[:200])
	tape.awaitAll(patience, append(ids, more[:200]...)...)
	_, place, err := r.db.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)

	require.NoError(t, first.Signal(syscall.SIGCONT))
	r.live(more[200:])
	tape.awaitAll(patience, append(ids, more...)...)
	stacktest.Eventually(t, patience, "the first has noticed that it leads no more", func() bool {
		return stacktest.Metric(t, first, "ax_lead_leading_bool") == 0
	})
	require.EqualValues(t, 1, stacktest.Metric(t, second, "ax_lead_leading_bool"))
	_, later, err := r.db.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)
	require.False(t, later.Before(place), "the former leader moved the place back")
}

func TestLostEventStreamIsFilledAgain(t *testing.T) {
	r := newRig(t)
	s := r.notifier()
	stacktest.AwaitLeading(t, s)
	ids := r.submit("before", 300)
	r.live(ids)
	pending := r.submit("pending", 50)
	tape, stop := r.record()
	tape.awaitAll(patience, append(ids, pending...)...)
	stop()

	require.NoError(t, r.nats.Wipe(t.Context()))
	more := r.submit("after", 300)
	r.live(more)
	stacktest.Eventually(t, patience, "the stream is there again", func() bool {
		_, err := r.bus.StreamCreated(t.Context(), events.StreamEvent)
		return err == nil
	})
	tape, _ = r.record()
	tape.awaitAll(patience, append(append(ids, pending...), more...)...)
	r.live(pending)
	tape.awaitAll(patience, pending...)
	r.requireDeadLetters(ids[:50]...)
	require.EqualValues(t, 1, stacktest.Metric(t, s, "ax_lead_leading_bool"), "it led all the time")
}

func TestNATSOutOfReachKeepsThePlace(t *testing.T) {
	r := newRig(t)
	s := r.notifier()
	stacktest.AwaitLeading(t, s)
	ids := r.submit("before", 100)
	r.live(ids)
	tape, stop := r.record()
	tape.awaitAll(patience, ids...)
	stop()

	require.NoError(t, r.nats.Down())
	stacktest.Eventually(t, patience, "it says that it is not ready", func() bool { return !stacktest.Ready(t, s) })
	more := r.submit("meanwhile", 600)
	parts(more, r.live)
	require.NoError(t, r.nats.Restart(t.Context()))
	stacktest.Eventually(t, patience, "it is ready again", func() bool { return stacktest.Ready(t, s) })
	stacktest.Eventually(t, patience, "the test is connected again", r.bus.NC().IsConnected)
	tape, _ = r.record()
	tape.awaitAll(patience, append(ids, more...)...)
	r.requireDeadLetters(more[:100]...)
}

func TestWaitsForWhatIsNotThereYet(t *testing.T) {
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{})
	r := newRigOn(t, mongo.URI(), "ax")
	ids := r.submit("early", 50)
	r.live(ids)
	require.NoError(t, r.nats.Down())
	require.NoError(t, mongo.Kill())
	s := stacktest.StartService(t, service, r.env...)
	stacktest.Eventually(t, patience, "it says that it waits for the database", func() bool {
		return strings.Contains(s.Output(), "not yet, trying again") && strings.Contains(s.Output(), "what=database")
	})
	require.False(t, stacktest.Ready(t, s))
	require.NoError(t, mongo.Restart(t.Context()))
	stacktest.Eventually(t, patience, "it says that it waits for NATS", func() bool { return strings.Contains(s.Output(), "what=NATS") })
	require.False(t, stacktest.Ready(t, s))
	require.NoError(t, r.nats.Restart(t.Context()))
	stacktest.Eventually(t, patience, "it is ready", func() bool { return stacktest.Ready(t, s) })
	stacktest.Eventually(t, patience, "the test is connected again", r.bus.NC().IsConnected)
	tape, _ := r.record()
	tape.awaitAll(patience, ids...)
}

func TestDatabaseKilledUnderTheStream(t *testing.T) {
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{})
	r := newRigOn(t, mongo.URI(), "ax")
	s := r.notifier()
	stacktest.AwaitLeading(t, s)
	tape, _ := r.record()
	ids := r.submit("before", 200)
	r.live(ids)
	require.NoError(t, mongo.Kill())
	require.NoError(t, mongo.Restart(t.Context()))
	stacktest.Eventually(t, patience, "the database answers", func() bool { return r.db.Ping(t.Context()) == nil })
	more := r.submit("after", 200)
	r.live(more)
	tape.awaitAll(patience, append(ids, more...)...)
	r.requireDeadLetters(more[:50]...)
}

func TestWithoutChangeStreamsSweepsFindEverything(t *testing.T) {
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{Standalone: true})
	r := newRigOn(t, mongo.URI(), "ax")
	s := r.notifier()
	stacktest.AwaitLeading(t, s)
	tape, _ := r.record()
	ids := r.submit("swept", 200)
	r.live(ids)
	tape.awaitAll(patience, ids...)
	r.requireDeadLetters(ids...)
	require.EqualValues(t, 1, stacktest.Metric(t, s, "ax_notifier_degraded_bool"))
}

func TestRefusedSubmissionsAreCounted(t *testing.T) {
	r := newRig(t)
	s := r.notifier()
	body, err := events.Encode(events.DeadSubmit{
		Subject: "ax.submit.email", Sequence: 7, Error: events.Error{Code: events.CodeInvalid, Field: "priority", Message: "10 is not allowed"},
	})
	require.NoError(t, err)
	for range 3 {
		_, err = r.bus.JS().Publish(t.Context(), events.SubjectDeadSubmit, body)
		require.NoError(t, err)
	}
	stacktest.Eventually(t, patience, "they are counted", func() bool {
		return stacktest.Metric(t, s, `ax_notifier_refused_submissions_total`) == 3
	})
}
