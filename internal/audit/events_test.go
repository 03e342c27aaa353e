package audit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/audit"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// eventsOf are the events that the changes of a task should have.
func eventsOf(t *task.Task) []events.Event {
	var out []events.Event
	for _, e := range t.History {
		out = append(out, events.Event{ID: t.ID, Type: t.Type, Seq: e.Seq, From: string(e.From), State: string(e.To), Reason: string(e.Reason),
			Attempt: e.Attempt, ExecutionID: task.ExecutionID(e.Claim, t.ID), At: events.FormatTime(e.At), By: e.By})
	}
	return out
}

func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bus, err := natsbus.Connect(natsbus.Options{URL: stacktest.NATS(t).URL()})
	require.NoError(t, err)
	t.Cleanup(bus.Close)
	r.succeeded("before the stream")
	stacktest.Eventually(t, 30*time.Second, "the streams are there", func() bool {
		_, err := bus.EnsureStreams(t.Context())
		return err == nil
	})
	publish := func(all ...events.Event) {
		for i, e := range all {
			body, err := events.EncodeEvent(e)
			require.NoError(t, err)
			_, err = bus.JS().PublishAsync(events.SubjectEvent(e.Type, e.State), body)
			require.NoError(t, err)
			if i == len(all)-1 || i%100 == 99 {
				<-bus.JS().PublishAsyncComplete()
			}
		}
	}
	withEvents := func(o *audit.Options) { o.Events = bus }
	_, sum := r.audit(withEvents)
	require.Len(t, sum.Unchecked, 1, "the notifier has never run: %v", sum.Unchecked)

	began := r.time()
	stacktest.Eventually(t, 10*time.Second, "the stream is old enough", func() bool { return r.time().Sub(began) > 2500*time.Millisecond })
	want := []string{}
	planted := func(kind audit.Kind, id string, change func(e []events.Event) []events.Event) {
		r.succeeded(id)
		publish(change(eventsOf(r.get(id)))...)
		if kind != "" {
			want = append(want, string(kind)+" "+id)
		}
	}
	all := func(e []events.Event) []events.Event { return e }
	planted("", "clean", all)
	planted("", "doubled", func(e []events.Event) []events.Event { return []events.Event{e[0], e[1], e[0], e[1], e[2], e[0]} })
	planted("", "told again by a new stream", func(e []events.Event) []events.Event { return []events.Event{e[2], e[0], e[1], e[2]} })
	planted("", "announced", func(e []events.Event) []events.Event {
		gap := e[1]
		gap.Gap = &events.Gap{FromSeq: 1, ToSeq: 2}
		return []events.Event{gap, e[2]}
	})
	planted(audit.EventMissing, "none", func(e []events.Event) []events.Event { return nil })
	planted(audit.EventMissing, "first", func(e []events.Event) []events.Event { return e[1:] })
	planted(audit.EventMissing, "middle", func(e []events.Event) []events.Event { return []events.Event{e[0], e[2]} })
	planted(audit.EventMissing, "last", func(e []events.Event) []events.Event { return e[:2] })
	planted(audit.EventOrder, "order", func(e []events.Event) []events.Event { return []events.Event{e[0], e[2], e[1]} })
	planted(audit.EventContent, "reason", func(e []events.Event) []events.Event {
		e[2].Reason = "exhausted"
		return e
	})
	planted(audit.EventContent, "two stories", func(e []events.Event) []events.Event {
		other := e[1]
		other.By = "worker/other"
		return []events.Event{e[0], other, e[1], e[2]}
	})
	planted(audit.EventContent, "too many", func(e []events.Event) []events.Event {
		more := e[2]
		more.Seq++
		return append(e, more)
	})
	r.insert("long")
	for range 60 {
		r.finish(r.claim("long"), task.Released)
		if h := eventsOf(r.get("long")); len(h) == task.MaxHistory || len(h)%2 == 1 {
			publish(h[max(0, len(h)-3):]...)
		}
	}
	lately := r.time()
	r.told(r.now.Add(time.Hour))
	stacktest.Eventually(t, 20*time.Second, "the changes are old enough", func() bool { return r.time().Sub(lately) > 5500*time.Millisecond })
	r.succeeded("a moment ago")

	found, sum := r.audit(withEvents)
	require.ElementsMatch(t, want, found)
	require.Empty(t, sum.Unchecked)
	require.Greater(t, sum.Events, 100)
	found, _ = r.audit(withEvents, func(o *audit.Options) { o.Type = "other" })
	require.Empty(t, found)

	// Only what the notifier says it has dealt with can be missing.
	r.told(began)
	found, _ = r.audit(withEvents)
	require.NotContains(t, fmt.Sprint(found), "event_missing")

	// What the stream has dropped cannot be missing either.
	r.told(r.now.Add(time.Hour))
	stream, err := bus.JS().Stream(t.Context(), events.StreamEvent)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
	publish(eventsOf(r.get("clean"))[2])
	found, _ = r.audit(withEvents)
	require.Empty(t, found)
	require.NoError(t, bus.JS().DeleteStream(t.Context(), events.StreamEvent))
	_, err = audit.Run(t.Context(), r.store, audit.Options{Events: bus})
	require.ErrorContains(t, err, "stream AX_EVENT")
}
