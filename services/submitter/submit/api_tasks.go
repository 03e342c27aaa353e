package submit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func (a *API) get(ctx context.Context, in events.IDRequest) (events.Task, error) {
	if err := requireID(in.ID); err != nil {
		return events.Task{}, err
	}
	t, err := a.store.Get(ctx, in.ID)
	if err != nil {
		return events.Task{}, err
	}
	v := intake.View(t)
	a.shrink(&v)
	return v, nil
}

// shrink leaves out what makes a reply too large, the result first: it has been in the event of the task's end. What is left
// out is told by its size.
func (a *API) shrink(v *events.Task) {
	room := a.maxReply - 64<<10 // for all the rest, whose fields are bounded
	fits := func() bool { return len(v.Payload)+len(v.Result)+len(v.Progress) <= room }
	if !fits() {
		v.ResultSize, v.Result = len(v.Result), nil
	}
	if !fits() {
		v.PayloadSize, v.Payload = len(v.Payload), nil
	}
}

func (a *API) history(ctx context.Context, in events.IDRequest) (events.HistoryReply, error) {
	if err := requireID(in.ID); err != nil {
		return events.HistoryReply{}, err
	}
	t, err := a.store.Get(ctx, in.ID)
	if err != nil {
		return events.HistoryReply{}, err
	}
	return events.HistoryReply{ID: t.ID, Entries: intake.History(t)}, nil
}

const (
	defaultPage = 50
	maxPage     = 1000
)

func (a *API) list(ctx context.Context, in events.ListRequest) (events.ListReply, error) {
	if err := validateList(in); err != nil {
		return events.ListReply{}, err
	}
	limit := in.Limit
	if limit == 0 {
		limit = defaultPage
	}
	tasks, err := a.store.List(ctx, in.Type, task.State(in.State), limit, in.After)
	if err != nil {
		return events.ListReply{}, err
	}
	var reply events.ListReply
	reply.Tasks, err = page(a, tasks, intake.Brief)
	if n := len(reply.Tasks); n > 0 && (n < len(tasks) || n == limit) {
		reply.Next = reply.Tasks[n-1].ID
	}
	return reply, err
}

// page shows as many of the stored ones as fit into a reply, the first one in any case.
func page[S, V any](a *API, stored []S, view func(S) V) ([]V, error) {
	shown := []V{}
	size := 1 << 10
	for _, s := range stored {
		v := view(s)
		text, err := events.Encode(v)
		if err != nil {
			return nil, err
		}
		if size += len(text) + 1; size > a.maxReply && len(shown) > 0 {
			break
		}
		shown = append(shown, v)
	}
	return shown, nil
}

func validateList(in events.ListRequest) error {
	switch {
	case in.Type != "" && task.ValidateType(in.Type) != nil:
		return task.ValidateType(in.Type)
	case in.State != "" && !task.State(in.State).Valid():
		return &task.FieldError{Field: "state", Value: in.State, Allowed: fmt.Sprintf("one of %v, or nothing for all", task.States)}
	case in.Limit < 0 || in.Limit > maxPage:
		return &task.FieldError{Field: "limit", Value: fmt.Sprint(in.Limit), Allowed: fmt.Sprintf("a whole number from 1 to %d, or nothing for %d", maxPage, defaultPage)}
	case in.After != "" && !task.WellFormedID(in.After):
		return &task.FieldError{Field: "after", Value: in.After, Allowed: "what the page before gave as next"}
	}
	return nil
}

func (a *API) cancel(ctx context.Context, in events.IDRequest) (events.CancelReply, error) {
	if err := requireID(in.ID); err != nil {
		return events.CancelReply{}, err
	}
	if err := task.ValidateBy(in.By); err != nil {
		return events.CancelReply{}, err
	}
	by := in.By
	if by == "" {
		by = intake.SourceAPI
	}
	status, t, err := a.store.Cancel(ctx, in.ID, by)
	if err != nil {
		return events.CancelReply{}, err
	}
	switch status {
	case task.CancelNotFound:
		return events.CancelReply{}, task.ErrNotFound
	case task.CancelAsked:
		a.tellWorker(t)
	}
	return events.CancelReply{ID: in.ID, Status: string(status)}, nil
}

// tellWorker hurries a cancel up. A worker that does not hear it learns of it by its next heartbeat.
func (a *API) tellWorker(t *task.Task) {
	if err := a.taker.bus.PublishCancel(events.Cancel{ID: t.ID, ExecutionID: t.ExecutionID()}); err != nil {
		a.noisy.Do(func() {
			a.log.Warn("a worker was not told of a cancel; its heartbeat will", "task_id", t.ID, "err", err)
		})
	}
}

// rerun stores a new task that names the old one. Who asked is kept in its source. Asked again it answers with the task it made, a
// duplicate, and refuses once that one has ended.
func (a *API) rerun(ctx context.Context, in events.IDRequest) (events.Answer, error) {
	if err := requireID(in.ID); err != nil {
		return events.Answer{}, err
	}
	if err := task.ValidateBy(in.By); err != nil {
		return events.Answer{}, err
	}
	old, err := a.store.Get(ctx, in.ID)
	if err != nil {
		return events.Answer{}, err
	}
	now, _, err := a.taker.store.Now()
	if err != nil {
		return events.Answer{}, err
	}
	t, err := intake.Rerun(old, now)
	if err != nil {
		return events.Answer{}, err
	}
	if in.By != "" {
		t.Source += "/" + in.By
	}
	status, errs := a.taker.storeAll(ctx, []*task.Task{t})
	if errs[0] == nil && status[0] == task.Duplicate {
		stored, err := a.store.Get(ctx, t.ID)
		if err != nil {
			return events.Answer{}, err
		}
		if stored.State.Terminal() { // nothing would run, and the caller believe that it does
			return events.Answer{}, intake.RerunEnded(old, stored)
		}
	}
	return a.outcome(t, status[0], errs[0])
}

func (a *API) stats(ctx context.Context, _ struct{}) (events.StatsReply, error) {
	workers, err := a.store.Workers(ctx)
	if err != nil {
		return events.StatsReply{}, err
	}
	dead, err := a.store.CountDeadLetters(ctx)
	if err != nil {
		return events.StatsReply{}, err
	}
	now, _, err := a.taker.store.Now()
	if err != nil {
		return events.StatsReply{}, err
	}
	due, err := a.store.Due(ctx, time.Time{}, now, 1)
	if err != nil {
		return events.StatsReply{}, err
	}
	services, err := a.store.Services(ctx)
	if err != nil {
		return events.StatsReply{}, err
	}
	reply := events.StatsReply{Now: events.FormatTime(now), Workers: make([]events.Worker, len(workers)), DeadLetters: dead,
		Services: make([]events.Service, len(services)), Attention: attention(services, now)}
	for i, s := range services {
		reply.Services[i] = events.Service{ID: s.ID, Service: s.Service, Host: s.Host, PID: s.PID, Version: s.Version, Leads: s.Leads,
			Conditions: s.Conditions, SeenAt: events.FormatTime(s.SeenAt)}
	}
	if len(due) > 0 {
		reply.BacklogSeconds = max(0, now.Sub(due[0].ScheduledAt).Seconds())
		if !taken(due[0].Type, workers, now) {
			reply.Attention = append(reply.Attention, fmt.Sprintf("the oldest due task is of type %s, and no worker takes that type", due[0].Type))
		}
	}
	for i, w := range workers {
		reply.Workers[i] = events.Worker{ID: w.ID, Host: w.Host, PID: w.PID, Types: slices.Clone(w.Types), Slots: w.Slots, Channel: w.Channel,
			Version: w.Version, SeenAt: events.FormatTime(w.SeenAt)}
	}
	return reply, nil
}
