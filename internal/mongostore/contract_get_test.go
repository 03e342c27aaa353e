package mongostore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestGet(t *testing.T) {
	s := openStore(t)
	tk := insertTasks(t, s, 1)[0]
	require.Equal(t, tk, getTask(t, s, tk.ID))
	archiveTask(t, s, tk.ID)
	require.Equal(t, tk, getTask(t, s, tk.ID), "from the archive")
	_, err := s.Get(t.Context(), "gone")
	require.ErrorIs(t, err, task.ErrNotFound)
}

func TestList(t *testing.T) {
	s := openStore(t)
	emails := insertTasks(t, s, 5)
	reports := insertTasks(t, s, 2, func(tk *task.Task) { tk.Type = "report" })
	claimTasks(t, s, emails[1], reports[0])

	list := func(taskType string, state task.State, limit int, after string) []string {
		got, err := s.List(t.Context(), taskType, state, limit, after)
		require.NoError(t, err)
		for _, tk := range got {
			require.Nil(t, tk.Payload)
			require.Nil(t, tk.History)
			require.NotEmpty(t, tk.Change)
		}
		return idsOf(got)
	}
	e, r := idsOf(emails), idsOf(reports)
	require.Equal(t, []string{r[1], r[0], e[4], e[3], e[2], e[1], e[0]}, list("", "", 0, ""))
	require.Equal(t, []string{e[4], e[3]}, list("email", "", 2, ""))
	require.Equal(t, []string{e[2], e[1]}, list("email", "", 2, e[3]))
	require.Equal(t, []string{e[0]}, list("email", "", 2, e[1]))
	require.Equal(t, []string{r[0], e[1]}, list("", task.Running, 10, ""))
	require.Equal(t, []string{r[1]}, list("report", task.Pending, 10, ""))
	require.Empty(t, list("other", "", 10, ""))
	require.Len(t, list("", "", -1, ""), 1, "at least one")
}
