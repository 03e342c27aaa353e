package mongostore

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestCursor(t *testing.T) {
	s := openStore(t)
	token, at, err := s.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)
	require.Nil(t, token)
	require.Zero(t, at, "it never ran")

	when := time.Date(2026, 3, 4, 5, 6, 7, 8_000_000, time.UTC)
	require.NoError(t, s.SaveCursor(t.Context(), "notifier", []byte("$one"), when, 3))
	token, at, err = s.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)
	require.Equal(t, []byte("$one"), token)
	require.Equal(t, when, at)

	// Without a time it is the database's of the write.
	before, _, err := s.ServerTime(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.SaveCursor(t.Context(), "notifier", []byte("two"), time.Time{}, 3))
	_, at, err = s.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)
	require.WithinRange(t, at, before.Add(-time.Second), before.Add(10*time.Second))

	token, _, err = s.LoadCursor(t.Context(), "dispatcher")
	require.NoError(t, err)
	require.Nil(t, token, "each reader has its own")
}

func TestCursorOfAFormerLeaderIsRefused(t *testing.T) {
	s := openStore(t)
	when := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	require.NoError(t, s.SaveCursor(t.Context(), "notifier", []byte("new"), when, 4))
	for _, token := range [][]byte{[]byte("old"), nil} {
		require.ErrorIs(t, s.SaveCursor(t.Context(), "notifier", token, when.Add(-time.Hour), 3), task.ErrNotLeader)
	}
	token, at, err := s.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)
	require.Equal(t, []byte("new"), token)
	require.Equal(t, when, at)

	// A dropped place keeps its epoch and its time.
	require.NoError(t, s.SaveCursor(t.Context(), "notifier", nil, when, 5))
	token, at, err = s.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)
	require.Nil(t, token)
	require.Equal(t, when, at)
	require.ErrorIs(t, s.SaveCursor(t.Context(), "notifier", []byte("old"), when, 4), task.ErrNotLeader)
}

// Leaders that believe in themselves at the same time: the newest one's place is never refused and stands at the end.
func TestCursorRace(t *testing.T) {
	s := openStore(t)
	const leaders = 8
	var all sync.WaitGroup
	for epoch := range leaders {
		all.Go(func() {
			for range 20 {
				err := s.SaveCursor(t.Context(), "notifier", []byte{byte(epoch)}, time.Time{}, int64(epoch))
				if epoch == leaders-1 && err != nil {
					t.Errorf("the newest leader: %v", err)
				} else if err != nil {
					if !errors.Is(err, task.ErrNotLeader) {
						t.Errorf("a former leader: %v", err)
					}
					return
				}
			}
		})
	}
	all.Wait()
	token, _, err := s.LoadCursor(t.Context(), "notifier")
	require.NoError(t, err)
	require.Equal(t, []byte{leaders - 1}, token)
}
