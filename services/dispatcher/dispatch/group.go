package dispatch

import (
	"encoding/json"
	"strconv"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// signal tells the workers of a lane to have a look at some tasks.
type signal struct {
	lane   Lane
	tasks  []events.SignalTask
	number uint64 // rises with each signal of a term
}

// message is the signal as it travels. It has no id for deduplication: a doubled signal costs a failed claim, one that is
// swallowed a sweep.
func (s *signal) message(epoch int64) events.Msg {
	body, err := json.Marshal(events.Signal{Tasks: s.tasks})
	if err != nil {
		panic(err) // strings and numbers only
	}
	return events.Msg{
		Subject: events.SubjectWork(s.lane.Type, s.lane.Channel, string(s.lane.Lane)),
		Data:    body,
		Header: events.Meta{
			ID:     strconv.FormatInt(epoch, 10) + "-" + strconv.FormatUint(s.number, 10),
			Source: events.Source("dispatcher"), Type: events.TypeTaskSignalled,
		}.Header(),
	}
}

// group makes signals of ids of one lane, in their order, size at most to each.
func group(signals []signal, lane Lane, ids []task.Candidate, size int) []signal {
	size = max(1, size)
	for len(ids) > 0 {
		n := min(size, len(ids))
		tasks := make([]events.SignalTask, n)
		for i := range tasks {
			c := &ids[i]
			tasks[i] = events.SignalTask{ID: c.ID, Seq: c.Seq, Attempt: c.Attempts, At: c.ScheduledAt.UnixMilli()}
		}
		signals = append(signals, signal{lane: lane, tasks: tasks})
		ids = ids[n:]
	}
	return signals
}
