package notify

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Store is what the notifier needs of the database.
type Store interface {
	// Now estimates the database's time; it lies within bound of the truth.
	Now() (now time.Time, bound time.Duration, err error)
	// LoadCursor returns a stored place in the change stream; no token when none was stored. Every change written before at
	// has been dealt with.
	LoadCursor(ctx context.Context, name string) (token []byte, at time.Time, err error)
	// SaveCursor stores a place; [task.ErrNotLeader] when a leader of a higher epoch has stored one.
	SaveCursor(ctx context.Context, name string, token []byte, at time.Time, epoch int64) error
	// OpenStream follows the changes after token, or from now on without one. [task.ErrHistoryLost] says that the stream no
	// longer reaches back to token, [task.ErrNoChangeStream] that this database has none.
	OpenStream(ctx context.Context, token []byte) (Stream, error)
	// EachLive hands all tasks that have not ended to visit, in batches of bounded size.
	EachLive(ctx context.Context, visit func([]*task.Task) error) error
	// FinishedBetween returns tasks with from <= finishedAt < to, in the order of finishedAt.
	FinishedBetween(ctx context.Context, from, to time.Time, limit int) ([]*task.Task, error)
	// Get returns one task, live or archived.
	Get(ctx context.Context, id string) (*task.Task, error)
	// UpsertDeadLetters writes the dead letters that are not there yet and leaves the others as they are.
	UpsertDeadLetters(ctx context.Context, dead []task.DeadTask) error
}

// Stream is an open change stream.
type Stream interface {
	// Next returns the next changes in their order. It waits about a second for one; nothing means that there was none.
	Next(ctx context.Context) ([]task.Observed, error)
	// Token is the place after the last changes returned.
	Token() []byte
	Close()
}

// Bus is what the notifier needs of NATS.
type Bus interface {
	// PublishInOrder publishes events until each is acknowledged or ctx ends. Of one task at most one event is
	// unacknowledged at a time, so they are stored in their order.
	PublishInOrder(ctx context.Context, msgs []events.Msg) error
	// EventStream names the present creation of AX_EVENT: another answer means that the stream was lost and made again.
	EventStream(ctx context.Context) (string, error)
}
