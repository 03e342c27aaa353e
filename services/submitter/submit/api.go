package submit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Records is what answering requests needs of the database.
type Records interface {
	Get(ctx context.Context, id string) (*task.Task, error)
	List(ctx context.Context, taskType string, state task.State, limit int, after string) ([]*task.Task, error)
	Cancel(ctx context.Context, id, by string) (task.CancelStatus, *task.Task, error)
	// Due returns the pending tasks that are due in [from, to), the earliest first.
	Due(ctx context.Context, from, to time.Time, limit int) ([]task.Candidate, error)
	Workers(ctx context.Context) ([]task.WorkerInfo, error)
	Services(ctx context.Context) ([]task.ServiceInfo, error)
	CountDeadLetters(ctx context.Context) (int64, error)
	Schedules
}

// Handler answers a request, or refuses it with an [*events.Error]. The reply is encoded as JSON.
type Handler func(ctx context.Context, header events.Header, body []byte) (reply any, err error)

// defaultMaxReply leaves room for headers in a message of 1 MiB.
const defaultMaxReply = 1<<20 - 16<<10

// API answers requests about tasks and schedules. Its tasks go into the same batches as those of the stream.
type API struct {
	store    Records
	taker    *Submitter
	maxReply int
	log      *slog.Logger
	noisy    rate.Sometimes
}

// NewAPI makes the API of a running submitter. maxReply is the largest reply in bytes that can be sent; 0: just under 1 MiB.
func NewAPI(s *Submitter, store Records, maxReply int) *API {
	if maxReply <= 0 {
		maxReply = defaultMaxReply
	}
	return &API{store: store, taker: s, maxReply: maxReply, log: s.log, noisy: seldom()}
}

// Endpoints returns the handler of each subject. They may be called at the same time, with a context that has a deadline.
func (a *API) Endpoints() map[string]Handler {
	return map[string]Handler{
		events.APISubmit:         endpoint(a, events.APISubmit, a.submit),
		events.APISubmitMany:     endpoint(a, events.APISubmitMany, a.submitMany),
		events.APIGet:            endpoint(a, events.APIGet, decoded(a.get)),
		events.APIList:           endpoint(a, events.APIList, decoded(a.list)),
		events.APICancel:         endpoint(a, events.APICancel, decoded(a.cancel)),
		events.APIHistory:        endpoint(a, events.APIHistory, decoded(a.history)),
		events.APIStats:          endpoint(a, events.APIStats, decoded(a.stats)),
		events.APIRerun:          endpoint(a, events.APIRerun, decoded(a.rerun)),
		events.APISchedulePut:    endpoint(a, events.APISchedulePut, decoded(a.putSchedule)),
		events.APIScheduleGet:    endpoint(a, events.APIScheduleGet, decoded(a.getSchedule)),
		events.APIScheduleList:   endpoint(a, events.APIScheduleList, decoded(a.listSchedules)),
		events.APIScheduleDelete: endpoint(a, events.APIScheduleDelete, decoded(a.deleteSchedule)),
	}
}

// endpoint gives every request the one form of refusal.
func endpoint[Out any](a *API, name string, answer func(context.Context, events.Header, []byte) (Out, error)) Handler {
	return func(ctx context.Context, header events.Header, body []byte) (any, error) {
		reply, err := answer(ctx, header, body)
		if err == nil {
			return reply, nil
		}
		refused := intake.Refusal(err)
		if refused.Code == events.CodeUnavailable {
			a.noisy.Do(func() { a.log.Warn("a request could not be answered", "endpoint", name, "err", err) })
		}
		return nil, refused
	}
}

// decoded reads the body of a request strictly. An empty body is that of a request without members.
func decoded[In, Out any](answer func(context.Context, In) (Out, error)) func(context.Context, events.Header, []byte) (Out, error) {
	return func(ctx context.Context, _ events.Header, body []byte) (out Out, err error) {
		var in In
		if len(bytes.TrimSpace(body)) > 0 {
			if err := events.Decode(body, &in); err != nil {
				return out, err
			}
		}
		return answer(ctx, in)
	}
}

// requireID checks an id that is to be looked up. Those of ax itself are welcome here.
func requireID(id string) error {
	if !task.WellFormedID(id) {
		return task.ValidateID(id)
	}
	return nil
}

func (a *API) submit(ctx context.Context, header events.Header, body []byte) (events.Answer, error) {
	t, err := a.build(body, header)
	if err != nil {
		return events.Answer{}, a.count(err)
	}
	status, errs := a.taker.storeAll(ctx, []*task.Task{t})
	return a.outcome(t, status[0], errs[0])
}

// maxMany bounds the tasks of one request.
const maxMany = 1000

func (a *API) submitMany(ctx context.Context, header events.Header, body []byte) (events.SubmitManyReply, error) {
	// The members stay as they were sent: each has its own hash, and each is accepted or refused by itself.
	var in struct {
		Tasks []json.RawMessage `json:"tasks"`
	}
	if err := events.Decode(body, &in); err != nil {
		return events.SubmitManyReply{}, err
	}
	if len(in.Tasks) == 0 || len(in.Tasks) > maxMany {
		return events.SubmitManyReply{}, events.Invalid("tasks", fmt.Sprintf("a list of %d", len(in.Tasks)), fmt.Sprintf("1 to %d tasks in one request", maxMany))
	}
	reply := events.SubmitManyReply{Answers: make([]events.Answer, len(in.Tasks))}
	var tasks []*task.Task
	of := make([]int, len(in.Tasks)) // the place of each submission in tasks; -1: it is refused
	first := map[string]int{}        // the same for ids: of two submissions with one id the first counts, in whatever order they would be stored
	for i, one := range in.Tasks {
		t, err := a.build(one, header)
		if err != nil {
			of[i], reply.Answers[i].Error = -1, intake.Refusal(a.count(err))
			continue
		}
		n, again := first[t.ID]
		switch {
		case !again:
			of[i], first[t.ID] = len(tasks), len(tasks)
			tasks = append(tasks, t)
		case t.SubmitHash == tasks[n].SubmitHash:
			of[i] = n
		default:
			of[i], reply.Answers[i] = -1, events.Answer{ID: t.ID, Error: intake.Refusal(a.count(intake.IDConflict(t.ID)))}
		}
	}
	status, errs := a.taker.storeAll(ctx, tasks)
	told := make([]bool, len(tasks))
	for i, n := range of {
		if n < 0 {
			continue
		}
		if status[n] == task.Inserted && told[n] {
			status[n] = task.Duplicate
		}
		answer, err := a.outcome(tasks[n], status[n], errs[n])
		if err != nil {
			answer.Error = intake.Refusal(err)
		}
		reply.Answers[i], told[n] = answer, true
	}
	return reply, nil
}

func (a *API) build(body []byte, header events.Header) (*task.Task, error) {
	req, err := events.DecodeSubmitRequest(body)
	if err != nil {
		return nil, err
	}
	now, _, err := a.taker.store.Now()
	if err != nil {
		return nil, err
	}
	return intake.Build(&req.Submit, intake.Origin{Type: req.Type, Source: intake.SourceAPI,
		Traceparent: header.Get(events.HeaderTraceparent), Now: now, Body: body})
}

// outcome is the answer for a task that was sent to the database. The answer keeps its id beside an error: if that leaves open
// whether it was stored, asking again with the id is safe.
func (a *API) outcome(t *task.Task, status task.InsertStatus, err error) (events.Answer, error) {
	if err != nil {
		refused := *intake.Refusal(err)
		if refused.Code == events.CodeUnavailable {
			refused.Field, refused.Value = "id", t.ID
			refused.Message = "the database did not answer; the task may be stored or not. Ask again: with id " + t.ID + " it is stored once"
		}
		return events.Answer{ID: t.ID}, a.count(&refused)
	}
	answer, err := intake.Answer(t, status)
	if err != nil {
		a.count(err)
	}
	return answer, err
}

// count counts a refused submission.
func (a *API) count(err error) error {
	a.taker.metrics.refused.WithLabelValues(intake.Refusal(err).Code).Inc()
	return err
}

// storeAll stores tasks by way of the batches and waits for the outcome of each until ctx ends.
func (s *Submitter) storeAll(ctx context.Context, tasks []*task.Task) ([]task.InsertStatus, []error) {
	type outcome struct {
		place  int
		status task.InsertStatus
		err    error
	}
	status, errs := make([]task.InsertStatus, len(tasks)), make([]error, len(tasks))
	if err := s.batches.failure(); err != nil { // the caller need not wait to hear that
		for i := range errs {
			errs[i] = err
		}
		return status, errs
	}
	outcomes := make(chan outcome, len(tasks)) // room for all, also when nobody waits any more
	open := 0
	for i, t := range tasks {
		errs[i] = errors.New("no answer in time")
		err := s.batches.put(ctx, &job{task: t, settle: func(st task.InsertStatus, err error) { outcomes <- outcome{i, st, err} }})
		if err != nil {
			errs[i] = err
			continue
		}
		open++
	}
	for ; open > 0; open-- {
		select {
		case o := <-outcomes:
			status[o.place], errs[o.place] = o.status, o.err
		case <-ctx.Done():
			return status, errs
		}
	}
	return status, errs
}
