package client

import (
	"context"
	"errors"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Get returns a task, also one that was archived. Code not_found when there is none.
func (c *Client) Get(ctx context.Context, id string) (events.Task, error) {
	var t events.Task
	err := c.request(ctx, events.APIGet, events.IDRequest{ID: id}, &t)
	return t, err
}

// List returns one page of tasks by id from the greatest down; pass the reply's Next as After for the next one. Ids that ax makes
// for submissions rise with time, so these come newest first.
func (c *Client) List(ctx context.Context, req events.ListRequest) (events.ListReply, error) {
	var reply events.ListReply
	err := c.request(ctx, events.APIList, req, &reply)
	return reply, err
}

// History returns the recorded changes of a task, oldest first, at most the newest 100.
func (c *Client) History(ctx context.Context, id string) ([]events.HistoryEntry, error) {
	var reply events.HistoryReply
	err := c.request(ctx, events.APIHistory, events.IDRequest{ID: id}, &reply)
	return reply.Entries, err
}

// Cancel asks for a task to be cancelled. The status is "cancelled" (it will not run, or not again), "cancelling" (it runs;
// its handler is told, and the task is cancelled within 30 s) or "finished" (it had ended and stays as it is).
func (c *Client) Cancel(ctx context.Context, id string) (status string, err error) {
	var reply events.CancelReply
	err = c.request(ctx, events.APICancel, events.IDRequest{ID: id, By: c.opts.By}, &reply)
	return reply.Status, err
}

// Rerun submits the same work as an ended task again, as a new task that names the old one, and returns the new id. Asked again
// while the new one is under way it returns the same id; code finished once that has ended too: re-run the one the error names.
func (c *Client) Rerun(ctx context.Context, id string) (newID string, err error) {
	var answer events.Answer
	err = c.request(ctx, events.APIRerun, events.IDRequest{ID: id, By: c.opts.By}, &answer)
	if err == nil && answer.Error != nil {
		err = answer.Error
	}
	return answer.ID, err
}

// Stats returns the workers that are alive and what waits.
func (c *Client) Stats(ctx context.Context) (events.StatsReply, error) {
	var reply events.StatsReply
	err := c.request(ctx, events.APIStats, struct{}{}, &reply)
	return reply, err
}

// asError gives the refusal inside err, or wraps err as one.
func asError(err error) *events.Error {
	if e, ok := errors.AsType[*events.Error](err); ok {
		return e
	}
	return &events.Error{Code: events.CodeInternal, Message: err.Error()}
}
