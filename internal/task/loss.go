package task

import (
	"fmt"
	"hash/fnv"
	"time"
)

const (
	lossSpread     = 10 * time.Second // after the second loss
	mostLossSpread = 30 * time.Second // after any later one
	lossSteps      = 64
)

// LossDelay returns how long a task waits after it was lost with its worker, losses being counted with this one. The first time it
// does not: workers die, and their tasks should run again at once. A task that was lost twice may be what its workers died of, or may
// have been beside it; so from then on each task waits for a time of its own, up to 10 s and then up to 30 s, that what was lost together
// does not run, and die, together again. The time follows from the id, so that everybody computes the same.
func LossDelay(id string, losses int) time.Duration {
	if losses < 2 {
		return 0
	}
	spread := lossSpread
	if losses > 2 {
		spread = mostLossSpread
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", id, losses)
	return time.Duration(h.Sum64()%lossSteps) * (spread / lossSteps).Truncate(time.Millisecond)
}
