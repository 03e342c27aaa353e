package submit

import (
	"context"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Inserter is what taking submissions in needs of the database.
type Inserter interface {
	// Insert stores tasks, by majority. A status of zero beside an error means that it may or may not be stored; inserting
	// again is right.
	Insert(ctx context.Context, tasks []*task.Task) ([]task.InsertStatus, error)
	// Now estimates the database's time; an error when it is not known well enough.
	Now() (now time.Time, bound time.Duration, err error)
	// Ping asks whether the database answers.
	Ping(ctx context.Context) error
}

// Source delivers the messages of AX_SUBMIT.
type Source interface {
	// NextBatch waits for messages and returns those that are there, at most n. It may return none.
	NextBatch(ctx context.Context, n int) ([]events.Message, error)
	// Close stops asking for messages and gives back those that NextBatch has not returned.
	Close()
}

// Bus carries what the submitter has to say.
type Bus interface {
	// Publish stores messages in their streams and waits until each was acknowledged; one error, or nil, for each.
	Publish(ctx context.Context, msgs []events.Msg) []error
	// Answer tells the sender of a submission what became of it. It is not stored and may be lost.
	Answer(replyTo string, a events.Answer) error
	// PublishCancel tells workers at once what their heartbeats will tell them anyway.
	PublishCancel(c events.Cancel) error
}
