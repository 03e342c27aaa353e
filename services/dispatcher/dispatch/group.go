package dispatch

import (
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// group makes signals of ids of one lane, in their order, size at most to each.
func group(signals []Signal, lane Lane, ids []task.Candidate, size int) []Signal {
	size = max(1, size)
	for len(ids) > 0 {
		n := min(size, len(ids))
		tasks := make([]events.SignalTask, n)
		for i := range tasks {
			c := &ids[i]
			tasks[i] = events.SignalTask{ID: c.ID, Seq: c.Seq, Attempt: c.Attempts, At: c.ScheduledAt.UnixMilli()}
		}
		signals = append(signals, Signal{Lane: lane, Tasks: tasks})
		ids = ids[n:]
	}
	return signals
}
