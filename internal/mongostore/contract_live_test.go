package mongostore

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestEachLive(t *testing.T) {
	s := openStore(t)
	tasks := insertTasks(t, s, 2500)
	claimTasks(t, s, tasks[:500]...)
	for _, tk := range tasks[1000:1100] {
		_, _, err := s.Cancel(t.Context(), tk.ID, "somebody")
		require.NoError(t, err)
	}

	var seen []*task.Task
	batches := 0
	require.NoError(t, s.EachLive(t.Context(), func(batch []*task.Task) error {
		require.NotEmpty(t, batch)
		require.LessOrEqual(t, len(batch), maxBatch)
		seen = append(seen, batch...)
		batches++
		return nil
	}))
	require.Equal(t, 3, batches)
	require.Equal(t, append(idsOf(tasks[:1000]), idsOf(tasks[1100:])...), idsOf(seen), "all that have not ended, once, by id")
	require.Len(t, seen[0].History, 2, "with their history")
	require.Nil(t, seen[0].Payload, "without what events do not tell")

	enough := errors.New("enough")
	batches = 0
	require.ErrorIs(t, s.EachLive(t.Context(), func([]*task.Task) error { batches++; return enough }), enough)
	require.Equal(t, 1, batches)
}
