package dispatch

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Clock knows the database's time.
type Clock interface {
	// Now is an estimate of the database's time and how far it may be off; an error when that is not known well enough.
	Now() (now time.Time, bound time.Duration, err error)
}

// Backlog reads pending tasks. All reads are bounded by a window of time and a limit, and sorted by scheduledAt, then id.
type Backlog interface {
	// Candidates reads one type, channel and priority.
	Candidates(ctx context.Context, w task.Window) ([]task.Candidate, error)
	// Front is the earliest scheduledAt of one type, channel and priority; false when nothing is pending. It may be slow.
	Front(ctx context.Context, taskType, channel string, priority int) (time.Time, bool, error)
	// Due reads all types with from <= scheduledAt < to. A zero from means from the beginning.
	Due(ctx context.Context, from, to time.Time, limit int) ([]task.Candidate, error)
}

// Streams opens the change stream of the tasks and keeps the place up to which it was handled.
type Streams interface {
	// OpenStream continues behind the token; without one it begins now. It fails with [task.ErrHistoryLost] or
	// [task.ErrNoChangeStream] where nothing but a rescan, or the sweep alone, can help.
	OpenStream(ctx context.Context, token []byte) (Stream, error)
	// LoadCursor returns the saved token, nil when there is none, and the database's time up to which all was handled.
	LoadCursor(ctx context.Context, name string) (token []byte, at time.Time, err error)
	// SaveCursor keeps the token, or drops the saved one when token is nil; [task.ErrNotLeader] when a later epoch has saved.
	// Every change before at was handled; a zero at means now.
	SaveCursor(ctx context.Context, name string, token []byte, at time.Time, epoch int64) error
}

// Stream is an open change stream.
type Stream interface {
	// Next waits for the next changes, about a second at most; an empty answer means that nothing happened.
	Next(ctx context.Context) ([]task.Observed, error)
	// Token stands behind what Next returned last.
	Token() []byte
	Close()
}

// Roster knows the workers.
type Roster interface {
	// Slots returns, for each task type that registered workers announced, the slots of the smallest of them.
	Slots(ctx context.Context) (map[string]int, error)
}

// Store is what a dispatcher needs of the database.
type Store interface {
	Clock
	Backlog
	Streams
	Roster
}

// Bus carries signals.
type Bus interface {
	// Publish sends all messages in one go, in their order, and waits until each was stored (nil), refused ([events.ErrFull])
	// or failed. The answer has one error, or nil, for each message.
	Publish(ctx context.Context, msgs []events.Msg) []error
	// LaneInfo asks what of a lane's signals is still there.
	LaneInfo(ctx context.Context, taskType, channel, lane string) (events.LaneInfo, error)
	// SignalStream names the present creation of AX_WORK: another answer than before means that all signals were lost.
	SignalStream(ctx context.Context) (string, error)
}

// Lane names what one consumer of workers serves.
type Lane struct {
	Type    string
	Channel string
	Lane    task.Lane
}

func (l Lane) String() string { return l.Type + "." + l.Channel + "." + string(l.Lane) }
