package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/events"
)

// A schedule fires in each of its slots once, also when cron is killed in between.
func TestCronFiresEachSlotOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: 1})
	const every = 2 * time.Second
	began := time.Now()
	stored, err := w.client.PutSchedule(t.Context(), events.Schedule{Name: "poll", Cron: "@every 2s", Task: events.SubmitRequest{Type: workType, Submit: events.Submit{Payload: []byte(`{"runMs":5}`)}}})
	require.NoError(t, err)
	require.NotEmpty(t, stored.NextAt)
	awaitSlots := func(n int) {
		stacktest.Eventually(t, time.Minute, "slots fire", func() bool { return len(w.ticks("poll")) >= n })
	}
	awaitSlots(3)
	cron := w.system.Service("cron")
	require.NoError(t, cron.Kill())
	before := len(w.ticks("poll"))
	require.NoError(t, cron.Start(t.Context()))
	awaitSlots(before + 3)
	require.NoError(t, w.client.DeleteSchedule(t.Context(), "poll"))

	slots := w.ticks("poll")
	requireSlots(t, slots, every, time.Since(began))
	var ids []string
	for _, slot := range slots {
		ids = append(ids, "cron:poll:"+slot.Format(time.RFC3339))
	}
	require.Equal(t, stored.NextAt, events.FormatTime(slots[0]))
	runs := w.requireAllSucceeded(w.awaitEnds(ids, time.Minute))
	require.Len(t, byTask(runs), len(ids), "and nothing else ran")
}

// ticks are the slots of a schedule that have become tasks, in their order; each id is told once.
func (w *world) ticks(name string) []time.Time {
	w.t.Helper()
	var slots []time.Time
	for _, id := range w.stored() {
		text, ok := strings.CutPrefix(id, "cron:"+name+":")
		if !ok {
			continue
		}
		slot, err := time.Parse(time.RFC3339, text)
		require.NoError(w.t, err)
		slots = append(slots, slot.UTC())
	}
	slices.SortFunc(slots, time.Time.Compare)
	return slots
}
