package natsbus

import (
	"context"
	"math/rand/v2"
	"time"
)

// pause waits before try n+1 (n from 1): it doubles from first to most, plus up to half of it at random. It reports false
// when ctx ended meanwhile.
func pause(ctx context.Context, n int, first, most time.Duration) bool {
	timer := time.NewTimer(delay(n, first, most))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func delay(n int, first, most time.Duration) time.Duration {
	d := min(most, first<<min(max(n-1, 0), 20))
	return d + rand.N(d/2+1)
}
