package mongostore

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

func finishedBetween(t *testing.T, s *Store, from, to time.Time, limit int) []*task.Task {
	t.Helper()
	found, err := s.FinishedBetween(t.Context(), from, to, limit)
	require.NoError(t, err)
	return found
}

func TestFinishedBetween(t *testing.T) {
	s := openStore(t)
	base := serverNow(t, s).Add(-time.Hour).Truncate(time.Second).UTC()
	insertTasks(t, s, 1) // live ones are none
	claimTasks(t, s, insertTasks(t, s, 1)...)
	tasks := claimTasks(t, s, insertTasks(t, s, 6)...)
	finish(t, s, outcomesOf(tasks[:5])...)
	finishOne(t, s, tasks[5], task.FailedForGood)
	at := func(i int) time.Time { return base.Add(time.Duration(i) * time.Second) }
	var want []string
	for i, n := range []int{3, 0, 5, 1, 4, 2} { // in another order than they were made
		patch(t, s, tasks[n].ID, bson.D{{Key: "finishedAt", Value: at(i)}})
		want = append(want, tasks[n].ID)
	}
	for _, c := range []struct {
		from, to time.Time
		limit    int
		want     []string
	}{
		{time.Time{}, time.Time{}, 10, want},
		{at(0), at(6), 10, want},
		{at(1), at(3), 10, want[1:3]}, // from is in, to is out
		{at(1), at(6), 2, want[1:3]},
		{at(4).Add(time.Millisecond), time.Time{}, 10, want[5:]},
		{time.Time{}, at(0), 10, []string{}},
	} {
		found := finishedBetween(t, s, c.from, c.to, c.limit)
		require.Equal(t, c.want, idsOf(found))
		for _, tk := range found {
			full := getTask(t, s, tk.ID)
			require.NotNil(t, full.Payload)
			full.Payload = nil
			require.Equal(t, full, tk, "all that events tell is there: result, error and history")
		}
	}
}

// Page by page, each beginning where the last one ended, all are found, and those of one moment together.
func TestFinishedInPages(t *testing.T) {
	s := openStore(t)
	var ids []string
	for range 5 {
		tasks := claimTasks(t, s, insertTasks(t, s, 50)...)
		finish(t, s, outcomesOf(tasks)...)
		ids = append(ids, idsOf(tasks)...)
	}
	seen := map[string]bool{}
	from := time.Time{}
	for limit := 60; ; { // more than one write makes in a moment
		page := finishedBetween(t, s, from, time.Time{}, limit)
		require.True(t, slices.IsSortedFunc(page, func(a, b *task.Task) int { return a.FinishedAt.Compare(b.FinishedAt) }))
		for _, tk := range page {
			seen[tk.ID] = true
		}
		if len(page) < limit {
			break
		}
		last := page[len(page)-1].FinishedAt
		if last.Equal(from) { // a page of one moment: a longer one is needed
			limit *= 2
		}
		from = last
	}
	require.Len(t, seen, len(ids))
	for _, id := range ids {
		require.True(t, seen[id])
	}
}
