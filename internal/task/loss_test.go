package task

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLossDelaySpreadsWhatWasLostTogether(t *testing.T) {
	for _, losses := range []int{-1, 0, 1} {
		require.Zero(t, LossDelay("t", losses), "the first loss costs no time")
	}
	for losses, most := range map[int]time.Duration{2: 10 * time.Second, 3: 30 * time.Second, 1000: 30 * time.Second} {
		seen := map[time.Duration]int{}
		for i := range 6400 {
			id := fmt.Sprintf("task-%d", i)
			d := LossDelay(id, losses)
			require.Equal(t, d, LossDelay(id, losses))
			require.True(t, d >= 0 && d < most && d%time.Millisecond == 0, "%v", d)
			seen[d]++
		}
		require.Len(t, seen, 64)
		for d, n := range seen {
			require.Less(t, n, 200, "%v is chosen too often", d)
		}
	}
	require.NotEqual(t, LossDelay("a", 2)/10, LossDelay("a", 3)/30, "each time anew")
}
