package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/events"
)

// The submitter is killed when it has stored all submissions and NATS knows of none: NATS delivers all of them again, and they
// are the same tasks, although not one has an id.
func TestSubmitterKilledBetweenInsertAndAcks(t *testing.T) {
	t.Parallel()
	var proxy *natsProxy
	w := newWorld(t, worldOptions{workers: 1, slots: 100, envOf: func(natsURL string) map[string][]string {
		proxy = startProxy(t, natsURL)
		return map[string][]string{"submitter": {"AX_NATS_URL=" + proxy.URL()}}
	}})
	bus := w.plain()
	const n = 1000
	proxy.swallow.Store(true)
	for i := range n {
		require.NoError(t, bus.Publish("ax.submit.work", fmt.Appendf(nil, `{"payload":{"n":%d}}`, i)))
	}
	submitter := w.system.Service("submitter")
	stacktest.Eventually(t, time.Minute, "all inserted and acknowledged into nowhere", func() bool {
		return stacktest.Metric(t, submitter, "ax_submitter_accepted_total") == n && proxy.swallowed.Load() >= n
	})
	require.NoError(t, submitter.Kill())
	require.EqualValues(t, n, w.queued(bus), "NATS has seen no acknowledgement")
	proxy.swallow.Store(false)
	require.NoError(t, submitter.Start(t.Context()))

	stacktest.Eventually(t, 90*time.Second, "AX_SUBMIT is empty", func() bool { return w.queued(bus) == 0 })
	require.EqualValues(t, n, stacktest.Metric(t, submitter, "ax_submitter_duplicate_total"))
	require.Zero(t, stacktest.Metric(t, submitter, "ax_submitter_accepted_total"))
	ids := w.stored()
	require.Len(t, ids, n)
	seen := map[string]bool{}
	for _, one := range w.awaitEnds(ids, time.Minute) {
		require.False(t, seen[string(one.Payload)], "%s twice", one.Payload)
		seen[string(one.Payload)] = true
	}
	require.Len(t, w.executions(), n)
}

// plain is a NATS client as anyone has it.
func (w *world) plain() *nats.Conn {
	w.t.Helper()
	nc, err := nats.Connect(w.nats.URL())
	require.NoError(w.t, err)
	w.t.Cleanup(nc.Close)
	return nc
}

// queued is how many messages AX_SUBMIT holds.
func (w *world) queued(nc *nats.Conn) uint64 { return w.messages(nc, events.StreamSubmit) }

func (w *world) messages(nc *nats.Conn, name string) uint64 {
	w.t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(w.t, err)
	stream, err := js.Stream(w.t.Context(), name)
	require.NoError(w.t, err)
	return stream.CachedInfo().State.Msgs
}

// stored lists the ids of all tasks in the database.
func (w *world) stored() []string {
	w.t.Helper()
	var ids []string
	for after := ""; ; {
		page, err := w.store.List(w.t.Context(), "", "", 1000, after)
		require.NoError(w.t, err)
		if len(page) == 0 {
			return ids
		}
		for _, one := range page {
			ids = append(ids, one.ID)
		}
		after = ids[len(ids)-1]
	}
}
