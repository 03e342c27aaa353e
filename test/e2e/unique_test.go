package e2e

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// held is the task that a refusal names as the holder of the key.
func held(t *testing.T, err error) string {
	t.Helper()
	requireCode(t, events.CodeUniqueHeld, err)
	refused, _ := errors.AsType[*events.Error](err)
	return refused.Holder
}

func TestScenario03AHeldKeyStopsNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{slots: 200})
	key := client.Unique("K")
	first := client.NewTask(workType, work{Fail: 1}, key, client.Retry(6*time.Second, 1, 6*time.Second, 0))
	_, err := w.client.Submit(t.Context(), first)
	require.NoError(t, err)
	var again time.Time
	stacktest.Eventually(t, late, "the first attempt has failed", func() bool {
		one, err := w.store.Get(t.Context(), first.ID())
		require.NoError(t, err)
		again = one.ScheduledAt
		return one.State == task.Pending && one.Failures == 1
	})
	for range 20 {
		_, err := w.client.Submit(t.Context(), client.NewTask(workType, work{}, key))
		require.Equal(t, first.ID(), held(t, err), "refused while it waits for its retry, with the holder's id")
	}
	others := w.submit(500, work{RunMs: 1}, client.At(again))
	ended := w.awaitEnds(append(others, first.ID()), time.Minute)
	runs := byTask(w.requireAllSucceeded(ended))
	require.Len(t, runs[first.ID()], 2)
	for _, id := range others {
		started := ended[id].StartedAt
		require.False(t, started.Before(again), "%s started early", id)
		require.Less(t, started.Sub(again), 2*time.Second, "%s started late", id)
	}
	_, err = w.client.Submit(t.Context(), client.NewTask(workType, work{}, key))
	require.NoError(t, err, "the key is free again")
}

func TestScenario35AKeyIsFreeAfterEveryEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: 2, lease: time.Second})
	now, _, err := w.store.Now()
	require.NoError(t, err)
	ends := map[string]struct {
		payload work
		opts    []client.Option
		state   task.State
	}{
		"success":   {work{}, nil, task.Success},
		"exhausted": {work{Fail: 9}, []client.Option{client.MaxAttempts(1)}, task.Failed},
		"expired":   {work{}, []client.Option{client.ExpiresAt(now.Add(3 * time.Second))}, task.Failed},
		"timeout":   {work{RunMs: 60_000}, []client.Option{client.Timeout(time.Second), client.MaxAttempts(1)}, task.Failed},
		"lost":      {work{Exit: true}, []client.Option{client.MaxLosses(0)}, task.Failed},
		"cancelled": {work{}, []client.Option{client.Delay(time.Hour)}, task.Cancelled},
		"replaced":  {work{}, []client.Option{client.Delay(time.Hour)}, task.Cancelled},
	}
	typeOf := func(name string) string {
		if name == "expired" {
			return "nobody" // no worker takes it
		}
		return workType
	}
	ids := map[string]string{}
	var all []string
	for name, end := range ends {
		one := client.NewTask(typeOf(name), end.payload, append(end.opts, client.Unique(name))...)
		_, err := w.client.Submit(t.Context(), one)
		require.NoError(t, err, name)
		ids[name] = one.ID()
		all = append(all, one.ID())
	}
	_, err = w.client.Cancel(t.Context(), ids["cancelled"])
	require.NoError(t, err)
	_, err = w.client.Submit(t.Context(), client.NewTask(workType, work{}, client.Unique("replaced", client.OrReplace())))
	require.NoError(t, err)
	ended := w.awaitEnds(all, time.Minute)
	for name, end := range ends {
		require.Equal(t, end.state, ended[ids[name]].State, name)
		if name == "replaced" {
			continue
		}
		fresh := client.NewTask(typeOf(name), work{}, client.Unique(name))
		id, err := w.client.Submit(t.Context(), fresh)
		require.NoError(t, err, name)
		require.Equal(t, fresh.ID(), id)
	}

	// Of all who ask for a fresh key one creates the task, and each gets its id.
	const callers, each = 25, 20
	answers := make([][]events.Answer, callers)
	var done sync.WaitGroup
	for i := range callers {
		done.Go(func() {
			batch := make([]client.Task, each)
			for n := range batch {
				batch[n] = client.NewTask(workType, work{RunMs: 500}, client.Delay(5*time.Second), client.Unique("fresh", client.OrKeep()))
			}
			var err error
			if answers[i], err = w.client.SubmitMany(t.Context(), batch); err != nil {
				t.Errorf("submit: %v", err)
			}
		})
	}
	done.Wait()
	created := 0
	holder := answers[0][0].ID
	for _, part := range answers {
		for _, a := range part {
			require.True(t, a.Accepted, "%+v", a.Error)
			require.Equal(t, holder, a.ID)
			if !a.Duplicate {
				created++
			}
		}
	}
	require.Equal(t, 1, created, "the answer says whether a task was created")
	require.Equal(t, task.Success, w.awaitEnds([]string{holder}, time.Minute)[holder].State)
}

func TestScenarioM02CreatingAgainChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: 1})
	submit := func(key string, payload work, opts ...client.Option) (string, error) {
		return w.client.Submit(t.Context(), client.NewTask(workType, payload, append(opts, client.Unique(key))...))
	}
	ended, err := submit("K", work{})
	require.NoError(t, err)
	w.awaitEnds([]string{ended}, time.Minute)
	later, err := submit("J", work{}, client.Delay(time.Minute))
	require.NoError(t, err)
	running, err := submit("R", work{RunMs: 60_000})
	require.NoError(t, err)
	stacktest.Eventually(t, late, "it runs", func() bool {
		one, err := w.store.Get(t.Context(), running)
		require.NoError(t, err)
		return one.State == task.Running
	})
	read := func(id string) *task.Task {
		one, err := w.store.Get(t.Context(), id)
		require.NoError(t, err)
		one.LeaseUntil, one.CheckAt = time.Time{}, time.Time{} // its worker goes on beating
		return one
	}
	before := []*task.Task{read(ended), read(later), read(running)}

	fresh, err := submit("K", work{RunMs: 1})
	require.NoError(t, err)
	require.NotEqual(t, ended, fresh, "a new task")
	_, err = submit("J", work{})
	require.Equal(t, later, held(t, err))
	_, err = submit("R", work{})
	require.Equal(t, running, held(t, err))
	_, err = w.client.Submit(t.Context(), client.NewTask(workType, work{}, client.Unique("R", client.OrReplace())))
	require.Equal(t, running, held(t, err), "what runs is not replaced")
	require.Equal(t, before, []*task.Task{read(ended), read(later), read(running)})

	// The same by the other doors: a publication that is refused goes to AX_DEAD, one that keeps is answered by silence.
	kept := client.NewTask(workType, work{}, client.Unique("J", client.OrKeep()))
	require.NoError(t, errors.Join(w.client.Publish(t.Context(), kept, client.NewTask(workType, work{}, client.ID("late"), client.Unique("J")))...))
	js, err := jetstream.New(w.plain())
	require.NoError(t, err)
	var dead events.DeadSubmit
	stacktest.Eventually(t, late, "it lies in AX_DEAD", func() bool {
		stream, err := js.Stream(t.Context(), events.StreamDead)
		require.NoError(t, err)
		last, err := stream.GetLastMsgForSubject(t.Context(), events.SubjectDeadSubmit)
		return err == nil && json.Unmarshal(last.Data, &dead) == nil
	})
	require.Equal(t, []string{events.CodeUniqueHeld, later}, []string{dead.Error.Code, dead.Error.Holder})
	require.Contains(t, string(dead.Body), `"late"`)
	_, err = w.client.Get(t.Context(), kept.ID())
	requireCode(t, events.CodeNotFound, err)
	require.Equal(t, before[1], read(later))
}
