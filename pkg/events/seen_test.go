package events

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeenForgetsTheTaskMetLongestAgo(t *testing.T) {
	s := newSeen(2)
	s.mark("a", 3)
	s.mark("b", 1)
	s.mark("a", 2) // lower: met again, and still at 3
	s.mark("c", 1) // b goes
	require.Equal(t, int64(3), s.last("a"))
	require.Zero(t, s.last("b"))
	require.Equal(t, int64(1), s.last("c"))
	require.Len(t, s.tasks, 2)
	require.Equal(t, 2, s.order.Len())
}
