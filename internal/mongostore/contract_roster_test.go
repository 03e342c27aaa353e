package mongostore

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

func beatWorker(t *testing.T, s *Store, w task.WorkerInfo) {
	t.Helper()
	require.NoError(t, s.BeatWorker(t.Context(), w))
}

func workerOf(t *testing.T, s *Store, id string) task.WorkerInfo {
	t.Helper()
	all, err := s.Workers(t.Context())
	require.NoError(t, err)
	for _, w := range all {
		if w.ID == id {
			return w
		}
	}
	t.Fatalf("worker %s is not registered", id)
	return task.WorkerInfo{}
}

// beatAgain beats until the beat has another time than the one before: times are whole milliseconds.
func beatAgain(t *testing.T, s *Store, w task.WorkerInfo) task.WorkerInfo {
	t.Helper()
	before := workerOf(t, s, w.ID)
	var now task.WorkerInfo
	stacktest.Eventually(t, 10*time.Second, "a beat moves the time", func() bool {
		beatWorker(t, s, w)
		now = workerOf(t, s, w.ID)
		return now.SeenAt.After(before.SeenAt)
	})
	return now
}

func TestWorkerRegistersItself(t *testing.T) {
	s := openStore(t)
	// Times of the worker's own clock count for nothing.
	wrong := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	info := task.WorkerInfo{ID: "w1", Host: "$host", PID: 7, Channel: "$channel", Types: []string{"email", "$sms"}, Slots: 20, Version: "$1",
		StartedAt: wrong, SeenAt: wrong}
	beatWorker(t, s, info)
	first := workerOf(t, s, "w1")
	now := serverNow(t, s)
	require.WithinDuration(t, now, first.SeenAt, 10*time.Second)
	require.Equal(t, first.SeenAt, first.StartedAt)
	info.StartedAt, info.SeenAt = first.StartedAt, first.SeenAt
	require.Equal(t, info, first)

	info.Slots, info.Types = 30, []string{"push"}
	later := beatAgain(t, s, info)
	info.SeenAt = later.SeenAt
	require.Equal(t, info, later, "it is what the last beat says, and began when it began")
}

// A worker is removed only if it has not beaten since it was looked at.
func TestWorkerThatBeatsIsNotRemoved(t *testing.T) {
	s := openStore(t)
	beatWorker(t, s, task.WorkerInfo{ID: "w1"})
	beatWorker(t, s, task.WorkerInfo{ID: "w2"})
	read := workerOf(t, s, "w1")
	now := beatAgain(t, s, task.WorkerInfo{ID: "w1"})
	removed, err := s.RemoveWorker(t.Context(), read)
	require.NoError(t, err)
	require.False(t, removed)
	require.Equal(t, now, workerOf(t, s, "w1"))

	removed, err = s.RemoveWorker(t.Context(), now)
	require.NoError(t, err)
	require.True(t, removed)
	removed, err = s.RemoveWorker(t.Context(), now)
	require.NoError(t, err)
	require.False(t, removed, "it is gone")

	beatWorker(t, s, task.WorkerInfo{ID: "w1"}) // it was only out of reach
	require.NotZero(t, workerOf(t, s, "w1").StartedAt)
	removed, err = s.RemoveWorker(t.Context(), task.WorkerInfo{ID: "w1"})
	require.NoError(t, err)
	require.True(t, removed, "by its own word, whenever it beat")
	all, err := s.Workers(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1, "the other one is left")
}

// Two processes may have been given the same id: when one stops, the other one stays.
func TestRemoveWorkerLeavesTheEntryOfAnotherProcess(t *testing.T) {
	s := openStore(t)
	living := task.WorkerInfo{ID: "w1", Host: "h1", PID: 7}
	beatWorker(t, s, living)
	for _, stopping := range []task.WorkerInfo{{ID: "w1", Host: "h2", PID: 7}, {ID: "w1", Host: "h1", PID: 8}} {
		removed, err := s.RemoveWorker(t.Context(), stopping)
		require.NoError(t, err)
		require.False(t, removed)
		require.Equal(t, "h1", workerOf(t, s, "w1").Host)
	}
	removed, err := s.RemoveWorker(t.Context(), living)
	require.NoError(t, err)
	require.True(t, removed)
}

func TestWorkersBeatAtOnce(t *testing.T) {
	s := openStore(t)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if err := s.BeatWorker(t.Context(), task.WorkerInfo{ID: fmt.Sprint("w", i%4), Slots: i%4 + 1}); err != nil {
				t.Errorf("beat: %v", err)
			}
		})
	}
	all.Wait()
	found, err := s.Workers(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 4)
	for i, w := range found {
		require.Equal(t, fmt.Sprint("w", i), w.ID, "in the order of their ids")
		require.Equal(t, i+1, w.Slots)
	}
}

func TestSlotsOfTheSmallestWorker(t *testing.T) {
	s := openStore(t)
	slots, err := s.Slots(t.Context())
	require.NoError(t, err)
	require.Empty(t, slots)
	beatWorker(t, s, task.WorkerInfo{ID: "w1", Types: []string{"email", "sms"}, Slots: 20})
	beatWorker(t, s, task.WorkerInfo{ID: "w2", Types: []string{"sms", "push"}, Slots: 5})
	beatWorker(t, s, task.WorkerInfo{ID: "w3", Slots: 1}) // of no type
	slots, err = s.Slots(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{"email": 20, "sms": 5, "push": 5}, slots)
}

func TestServiceRegistersItself(t *testing.T) {
	s := openStore(t)
	info := task.ServiceInfo{ID: "reaper/$a", Service: "reaper", Host: "$host", PID: 7, Version: "$1", Leads: true, Conditions: []string{"$x is so"}}
	require.NoError(t, s.BeatService(t.Context(), info))
	all, err := s.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.WithinDuration(t, serverNow(t, s), all[0].SeenAt, 10*time.Second)
	began := all[0].StartedAt
	info.StartedAt, info.SeenAt = all[0].StartedAt, all[0].SeenAt
	require.Equal(t, info, all[0])

	info.Leads, info.Conditions = false, nil
	require.NoError(t, s.BeatService(t.Context(), info))
	all, err = s.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.False(t, all[0].Leads)
	require.Empty(t, all[0].Conditions)
	require.Equal(t, began, all[0].StartedAt)

	require.NoError(t, s.RemoveService(t.Context(), info.ID))
	require.NoError(t, s.RemoveService(t.Context(), info.ID))
	all, err = s.Services(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}
