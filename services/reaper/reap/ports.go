package reap

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// Store is what the reaper needs of the database.
type Store interface {
	// ServerTime asks the primary for its time and tells which server it is.
	ServerTime(ctx context.Context) (now time.Time, primary string, err error)
	// SweepCheck returns tasks of any state with CheckAt up to due, the earliest first.
	SweepCheck(ctx context.Context, due time.Time, limit int) ([]*task.Task, error)
	// Revive ends the executions of running tasks as they were read and returns the ids of those that had not changed since.
	Revive(ctx context.Context, read []*task.Task, by string) ([]string, error)
	// Expire fails pending and waiting tasks as they were read and returns the ids of those that had not changed since.
	Expire(ctx context.Context, read []*task.Task, by string) ([]string, error)
	// Mend pulls in leases and start times that lie so far ahead of now that only a clock that went back can explain them. It
	// returns how many it pulled in.
	Mend(ctx context.Context, now time.Time, lease time.Duration) (int, error)
	// Workers returns the registered workers.
	Workers(ctx context.Context) ([]task.WorkerInfo, error)
	// RemoveWorker forgets a worker unless it has beaten since it was read.
	RemoveWorker(ctx context.Context, read task.WorkerInfo) (bool, error)
	// LoadCursor returns when a reader of the change stream was last known to be up to date; zero when it never was.
	LoadCursor(ctx context.Context, name string) (token []byte, at time.Time, err error)
}
