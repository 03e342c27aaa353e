package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Bounds of what travels at once.
const (
	publishWindow = 2000      // publications without an acknowledgement
	requestTasks  = 1000      // tasks of one ax.api.submitMany
	requestBytes  = 900 << 10 // of one request, below the 1 MiB that NATS takes by default
	closeTimeout  = 5 * time.Second
	openTimeout   = 15 * time.Second
)

// Submit stores one task and returns its id. A nil error means that it is stored and will run; submitting the same again is
// no error. A refusal is an [*events.Error]; code unavailable means that it is not known whether the task was stored: submit
// the same [Task] again.
func (c *Client) Submit(ctx context.Context, t Task) (id string, err error) {
	if err := t.Check(); err != nil {
		return "", err
	}
	var answer events.Answer
	if err := c.request(ctx, events.APISubmit, t.request, &answer); err != nil {
		return "", err
	}
	if answer.Error != nil {
		return "", answer.Error
	}
	return answer.ID, nil
}

// SubmitMany stores tasks in batches. The answers stand in the order of the tasks: each was accepted or says why not. An
// error means that the answers without an id and an error are not known; submit the same tasks again.
func (c *Client) SubmitMany(ctx context.Context, tasks []Task) ([]events.Answer, error) {
	answers := make([]events.Answer, len(tasks))
	var batch events.SubmitManyRequest
	var places []int
	size := 0
	flush := func() error {
		if len(places) == 0 {
			return nil
		}
		var reply events.SubmitManyReply
		if err := c.request(ctx, events.APISubmitMany, batch, &reply); err != nil {
			return fmt.Errorf("submit %d tasks: %w", len(places), err)
		}
		if len(reply.Answers) != len(places) {
			return fmt.Errorf("submit %d tasks: %d answers came", len(places), len(reply.Answers))
		}
		for i, at := range places {
			answers[at] = reply.Answers[i]
		}
		batch.Tasks, places, size = nil, places[:0], 0
		return nil
	}
	for i, t := range tasks {
		if err := t.Check(); err != nil {
			answers[i] = events.Answer{ID: t.ID(), Error: asError(err)}
			continue
		}
		encoded, err := events.Encode(t.request)
		if err != nil {
			return answers, fmt.Errorf("submit: %w", err)
		}
		if len(places) == requestTasks || size+len(encoded) > requestBytes {
			if err := flush(); err != nil {
				return answers, err
			}
		}
		batch.Tasks, places, size = append(batch.Tasks, t.request), append(places, i), size+len(encoded)+1
	}
	return answers, flush()
}

// Publish queues tasks in NATS, many at once, and returns one error for each, in their order. Nil means that the submission
// is on disk in AX_SUBMIT and will become a task or a message in AX_DEAD. The submitter need not be running.
func (c *Client) Publish(ctx context.Context, tasks ...Task) []error {
	errs := make([]error, len(tasks))
	var msgs []natsbus.Msg
	var places []int
	for i, t := range tasks {
		if errs[i] = t.Check(); errs[i] != nil {
			continue
		}
		body, err := events.Encode(t.request.Submit)
		if err != nil {
			errs[i] = fmt.Errorf("publish: %w", err)
			continue
		}
		// One message id per publication, not per task: it only keeps a retry of these very bytes from being stored twice.
		msgs = append(msgs, natsbus.Msg{Subject: events.SubjectSubmit(t.request.Type), Data: body, ID: events.NewToken()})
		places = append(places, i)
	}
	for i, err := range c.publisher.Publish(ctx, msgs) {
		switch {
		case errors.Is(err, natsbus.ErrClosed), errors.Is(err, nats.ErrConnectionClosed):
			errs[places[i]] = ErrClosed
		case err != nil:
			errs[places[i]] = fmt.Errorf("publish task %s: %w", tasks[places[i]].ID(), err)
		}
	}
	return errs
}
