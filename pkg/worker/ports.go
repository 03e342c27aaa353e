package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// store is what a worker needs of the database. *mongostore.Store has all of it; tests put faults in between.
type store interface {
	Now() (now time.Time, bound time.Duration, err error)

	Claim(ctx context.Context, r task.ClaimRequest) ([]*task.Task, error)
	Resolve(ctx context.Context, claim string, ids []string) ([]*task.Task, error)
	Heartbeat(ctx context.Context, r task.HeartbeatRequest) (task.HeartbeatResult, error)
	Finish(ctx context.Context, outcomes []task.Outcome) ([]error, error)
	Progress(ctx context.Context, o task.Owned, progress json.RawMessage) error

	Due(ctx context.Context, from, to time.Time, limit int) ([]task.Candidate, error)
	Front(ctx context.Context, taskType, channel string, priority int) (time.Time, bool, error)
	Candidates(ctx context.Context, w task.Window) ([]task.Candidate, error)

	Workers(ctx context.Context) ([]task.WorkerInfo, error)
	BeatWorker(ctx context.Context, w task.WorkerInfo) error
	RemoveWorker(ctx context.Context, read task.WorkerInfo) (bool, error)

	BeginOnce(ctx context.Context, key, execution string, lease, keep time.Duration) (task.Once, error)
	CompleteOnce(ctx context.Context, key, execution string, value json.RawMessage, keep time.Duration) error
	AbandonOnce(ctx context.Context, key, execution string) error
}

// bus is what a worker needs of NATS.
type bus interface {
	// Lane makes a receiver of the signals of one lane.
	Lane(taskType, channel, lane string) laneSource
	// Signal publishes a signal and waits until it is stored.
	Signal(ctx context.Context, subject string, s events.Signal) error
	// SubscribeCancel calls fn for each cancellation until stop is called.
	SubscribeCancel(fn func(events.Cancel)) (stop func(), err error)
	Close()
}

// laneSource receives signals of one lane, see natsbus.Lane.
type laneSource interface {
	FetchNoWait(ctx context.Context, n int) ([]events.Message, error)
	Listen(n int)
	Asking() bool
	Arrivals() <-chan events.Message
	Close()
}
