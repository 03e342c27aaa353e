package mongostore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

// scheduled stores tasks with the given start times.
func scheduled(t *testing.T, s *Store, at []time.Time, change ...func(*task.Task)) []*task.Task {
	t.Helper()
	var tasks []*task.Task
	for _, when := range at {
		tasks = append(tasks, insertTasks(t, s, 1, append(change, func(tk *task.Task) { tk.ScheduledAt = when })...)...)
	}
	return tasks
}

func candidateIDs(found []task.Candidate) []string {
	var ids []string
	for _, c := range found {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestCandidatesOfAWindow(t *testing.T) {
	s := openStore(t)
	base := serverNow(t, s).Truncate(time.Second).UTC()
	at := func(ms ...int) (times []time.Time) {
		for _, m := range ms {
			times = append(times, base.Add(time.Duration(m)*time.Millisecond))
		}
		return times
	}
	tasks := scheduled(t, s, at(-30, -10, -20, -10, 0, 10))
	scheduled(t, s, at(-20), func(tk *task.Task) { tk.Type = "sms" })
	scheduled(t, s, at(-20), func(tk *task.Task) { tk.Channel = "canary" })
	scheduled(t, s, at(-20), func(tk *task.Task) { tk.Priority = 4 })
	scheduled(t, s, at(-20), func(tk *task.Task) { tk.Held = true })
	claimTasks(t, s, scheduled(t, s, at(-20))...)

	inOrder := []string{tasks[0].ID, tasks[2].ID, tasks[1].ID, tasks[3].ID, tasks[4].ID, tasks[5].ID} // by scheduledAt, then id
	for _, c := range []struct {
		name     string
		from, to time.Time
		limit    int
		want     []string
	}{
		{"all before a time", time.Time{}, at(11)[0], 10, inOrder},
		{"all", time.Time{}, time.Time{}, 10, inOrder},
		{"from is in, to is out", at(-20)[0], at(0)[0], 10, inOrder[1:4]},
		{"the first of them", at(-20)[0], at(0)[0], 2, inOrder[1:3]},
		{"of equal times by id", at(-10)[0], at(0)[0], 1, inOrder[2:3]},
		{"from on", at(-9)[0], time.Time{}, 10, inOrder[4:]},
		{"nothing", at(1)[0], at(10)[0], 10, nil},
	} {
		found, err := s.Candidates(t.Context(), task.Window{Type: "email", Channel: task.ChannelStable, Priority: task.DefaultPriority,
			From: c.from, To: c.to, Limit: c.limit})
		require.NoError(t, err)
		require.Equal(t, c.want, candidateIDs(found), c.name)
	}

	found, err := s.Candidates(t.Context(), task.Window{Type: "email", Channel: task.ChannelStable, Priority: 4, Limit: 10})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, task.Candidate{ID: found[0].ID, Type: "email", Channel: task.ChannelStable, Priority: 4, ScheduledAt: at(-20)[0], Seq: 1}, found[0])
}

// A candidate tells how often the task was tried, for its signal.
func TestCandidatesTellTheAttempt(t *testing.T) {
	s := openStore(t)
	tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
	finishOne(t, s, tk, task.Released)
	due, err := s.Due(t.Context(), time.Time{}, time.Time{}, 10)
	require.NoError(t, err)
	require.Len(t, due, 1)
	stored := getTask(t, s, tk.ID)
	require.Equal(t, task.Candidate{ID: tk.ID, Type: "email", Channel: task.ChannelStable, Priority: task.DefaultPriority,
		ScheduledAt: stored.ScheduledAt, Seq: 3, Attempts: 1}, due[0])
}

func TestFront(t *testing.T) {
	s := openStore(t)
	front := func(priority int) (time.Time, bool) {
		at, any, err := s.Front(t.Context(), "email", task.ChannelStable, priority)
		require.NoError(t, err)
		return at, any
	}
	_, any := front(task.DefaultPriority)
	require.False(t, any)
	base := serverNow(t, s).Truncate(time.Millisecond).UTC()
	tasks := scheduled(t, s, []time.Time{base.Add(time.Hour), base.Add(-time.Hour), base})
	scheduled(t, s, []time.Time{base.Add(-24 * time.Hour)}, func(tk *task.Task) { tk.Priority = 2 })
	at, any := front(task.DefaultPriority)
	require.True(t, any)
	require.Equal(t, base.Add(-time.Hour), at)
	_, any = front(3)
	require.False(t, any)

	claimTasks(t, s, tasks[1])
	at, _ = front(task.DefaultPriority)
	require.Equal(t, base, at, "of what is pending")

	// The earliest time that a task may name.
	scheduled(t, s, []time.Time{time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)})
	at, any = front(task.DefaultPriority)
	require.True(t, any)
	require.Equal(t, longAgo, at)
}

func TestDueOfEveryType(t *testing.T) {
	s := openStore(t)
	base := serverNow(t, s).Truncate(time.Second).UTC()
	var want []string
	for i, kind := range []string{"sms", "email", "sms", "push"} {
		tk := scheduled(t, s, []time.Time{base.Add(-time.Duration(i/2) * time.Second)}, func(tk *task.Task) { tk.Type, tk.Priority = kind, i })[0]
		want = append(want, tk.ID)
	}
	want = append(want[2:], want[:2]...) // the older two first, each pair by id
	claimTasks(t, s, scheduled(t, s, []time.Time{base})...)

	found, err := s.Due(t.Context(), time.Time{}, base.Add(time.Millisecond), 10)
	require.NoError(t, err)
	require.Equal(t, want, candidateIDs(found))
	found, err = s.Due(t.Context(), base, base.Add(time.Millisecond), 10)
	require.NoError(t, err)
	require.Equal(t, want[2:], candidateIDs(found))
	found, err = s.Due(t.Context(), base.Add(-time.Second), base, 1)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Contains(t, want[:2], found[0].ID)
}
