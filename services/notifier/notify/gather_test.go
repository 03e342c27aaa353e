package notify

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThePauseGrowsWithTheRate(t *testing.T) {
	require.Zero(t, gatherFor(0, time.Second), "nothing came: the server has waited already")
	require.Zero(t, gatherFor(smallBatch, 5*time.Millisecond), "a large batch is worth its reading")
	require.InDelta(t, gatherLeast, gatherFor(1, 10*time.Second), float64(time.Millisecond), "a lone change")
	require.Equal(t, gatherMost, gatherFor(4, 10*time.Millisecond), "400 a second")
	require.Equal(t, gatherMost, gatherFor(40, 0), "no time between is no division by zero")
	require.Greater(t, gatherFor(2, 20*time.Millisecond), gatherFor(1, 20*time.Millisecond))
}
