package e2e

import (
	"cmp"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
	"github.com/ax-scheduler/ax/test/programs"
)

const (
	ahead  = programs.Offset + "=3600"
	behind = programs.Offset + "=-3600"
	// early is how much sooner than asked a task may start: times written by an insert are an estimate of the database's.
	early = 300 * time.Millisecond
	// late is a bound for a slow machine; an hour is what this is about.
	late = 20 * time.Second
)

// Each process has another idea of the time, an hour off this way or that. Nothing changes but the times in their logs.
func TestClocksOfServicesAndWorkersAreAnHourOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{bin: offsetPrograms(t), workers: -1, envOf: func(string) map[string][]string {
		return map[string][]string{"submitter": {ahead}, "dispatcher": {behind}, "reaper": {ahead}, "notifier": {behind}, "cron": {ahead}}
	}})
	o := worldOptions{slots: 20}
	first := w.startWorker(t.Context(), o, ahead)
	second := w.startWorker(t.Context(), o, behind)
	for s, offset := range map[*localstack.Service]time.Duration{
		w.system.Service("submitter"): time.Hour, w.system.Service("notifier"): -time.Hour, first: time.Hour, second: -time.Hour,
	} {
		require.WithinDuration(t, time.Now().Add(offset), logTime(t, s), 5*time.Minute, "the clock of the %s is off", s.Name())
	}

	began := ledger.Now()
	const delay, base, every = 3 * time.Second, 2 * time.Second, 2 * time.Second
	at := time.Now().Add(delay)
	_, err := w.client.PutSchedule(t.Context(), events.Schedule{Name: "ticks", Cron: "@every " + every.String(), Task: events.SubmitRequest{Type: workType}})
	require.NoError(t, err)
	now := w.submit(20, work{})
	delayed := append(w.submit(10, work{}, client.Delay(delay)), w.submit(10, work{}, client.At(at))...)
	retried := w.submit(5, work{Fail: 1}, client.Retry(base, 2, time.Hour, 0))
	long := w.submit(4, work{RunMs: 9000}) // longer than a lease: beats keep it

	all := append(append(append(now[:len(now):len(now)], delayed...), retried...), long...)
	ended := w.awaitEnds(all, time.Minute)
	runs := byTask(w.requireAllSucceeded(ended))
	for _, one := range ended {
		require.WithinDuration(t, time.Now(), one.CreatedAt, 2*time.Minute, "times are the database's, whose clock is right")
		for _, e := range one.History {
			require.WithinDuration(t, time.Now(), e.At, 2*time.Minute, "times are the database's, whose clock is right")
		}
	}
	for _, id := range now {
		require.Len(t, runs[id], 1)
		requireBetween(t, 0, late, runs[id][0].At-began)
	}
	for _, id := range delayed {
		require.Len(t, runs[id], 1)
		requireBetween(t, delay-early, delay+late, runs[id][0].At-began)
	}
	for _, id := range retried {
		require.Len(t, runs[id], 2)
		requireBetween(t, base-early, base+late, runs[id][1].At-runs[id][0].End)
	}
	for _, id := range long {
		require.Len(t, runs[id], 1)
	}

	lost := w.submit(20, work{RunMs: 8000}) // long enough for all to run at once on a busy machine
	w.awaitRunning(lost)
	w.killWorker(first)
	runs = byTask(w.requireAllSucceeded(w.awaitEnds(lost, time.Minute)))
	again := 0
	for _, id := range lost {
		if e := runs[id]; e[0].Worker == first.Name() && e[0].Result == ledger.Killed {
			again++
			require.Len(t, e, 2)
			requireBetween(t, w.lease/2, w.lease+late, e[1].At-w.deaths[first.Name()])
		}
	}
	require.Positive(t, again, "the killed worker had work")
	requireSlots(t, w.ticks("ticks"), every, time.Duration(ledger.Now()-began))
}

// requireSlots checks that a schedule fired in slots of its own, for as long as it has been there and no longer. Of the slots
// that are missed while nobody leads only the last one fires, so a gap may be several slots wide.
func requireSlots(t *testing.T, slots []time.Time, every, age time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, len(slots), 3)
	require.LessOrEqual(t, len(slots), int(age/every)+2)
	for i, slot := range slots[1:] {
		gap := slot.Sub(slots[i])
		require.True(t, gap > 0 && gap%every == 0, "%v", slots)
	}
}

// awaitRunning waits until these tasks run, all at the same time.
func (w *world) awaitRunning(ids []string) {
	w.t.Helper()
	stacktest.Eventually(w.t, late, "all run", func() bool {
		runs := byTask(w.executions())
		for _, id := range ids {
			if e := runs[id]; len(e) == 0 || !e[len(e)-1].Running(ledger.Now()) {
				return false
			}
		}
		return true
	})
}

var logStamp = regexp.MustCompile(`time=(\S+)`)

// logTime is the time of the first line that a service logged.
func logTime(t *testing.T, s *localstack.Service) time.Time {
	t.Helper()
	found := logStamp.FindStringSubmatch(s.Output())
	require.NotEmpty(t, found, "no line with a time:\n%s", s.Output())
	at, err := time.Parse(time.RFC3339, found[1])
	require.NoError(t, err)
	return at
}

func byTask(runs []ledger.Execution) map[string][]ledger.Execution {
	of := map[string][]ledger.Execution{}
	for _, e := range runs {
		of[e.Task] = append(of[e.Task], e)
	}
	for _, runs := range of {
		slices.SortFunc(runs, func(a, b ledger.Execution) int { return cmp.Compare(a.At, b.At) })
	}
	return of
}

func requireBetween(t *testing.T, least, most time.Duration, nanoseconds int64) {
	t.Helper()
	took := time.Duration(nanoseconds)
	require.True(t, least <= took && took <= most, "took %v, allowed is %v to %v", took, least, most)
}
