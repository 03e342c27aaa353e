package submit

import (
	"context"
	"errors"
	"fmt"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Schedules is what of the database keeps schedules.
type Schedules interface {
	// Schedule returns one; [task.ErrNotFound].
	Schedule(ctx context.Context, name string) (task.Schedule, error)
	// Schedules returns them in the order of their names, behind after.
	Schedules(ctx context.Context, after string, limit int) ([]task.Schedule, error)
	// PutSchedule stores a schedule if it is still as it was read, by its revision; 0: there was none. False: it has changed.
	PutSchedule(ctx context.Context, s task.Schedule) (bool, error)
	// DeleteSchedule removes one and tells whether it was there.
	DeleteSchedule(ctx context.Context, name string) (bool, error)
}

// putTries bounds the race with cron, which moves a schedule on, and with others who edit it.
const putTries = 8

func (a *API) putSchedule(ctx context.Context, in events.Schedule) (events.Schedule, error) {
	for range putTries {
		now, _, err := a.taker.store.Now()
		if err != nil {
			return events.Schedule{}, err
		}
		s, err := intake.BuildSchedule(&in, now)
		if err != nil {
			return events.Schedule{}, err
		}
		old, err := a.store.Schedule(ctx, s.Name)
		switch {
		case errors.Is(err, task.ErrNotFound):
		case err != nil:
			return events.Schedule{}, err
		default:
			keepPlace(s, old)
		}
		stored, err := a.store.PutSchedule(ctx, *s)
		if err != nil {
			return events.Schedule{}, err
		}
		if stored {
			return intake.ViewSchedule(*s), nil
		}
	}
	return events.Schedule{}, fmt.Errorf("schedule %s changed %d times meanwhile", in.Name, putTries)
}

// keepPlace has an edited schedule go on where it was. A slot that is due stays due, unless the slots themselves have changed.
func keepPlace(s *task.Schedule, old task.Schedule) {
	s.Revision, s.LastAt = old.Revision, old.LastAt
	if s.Cron == old.Cron && s.Zone == old.Zone && !old.NextAt.IsZero() {
		s.Anchor, s.NextAt = old.Anchor, old.NextAt
	}
}

func (a *API) getSchedule(ctx context.Context, in events.ScheduleRequest) (events.Schedule, error) {
	if err := intake.ValidateScheduleName(in.Name); err != nil {
		return events.Schedule{}, err
	}
	s, err := a.store.Schedule(ctx, in.Name)
	if errors.Is(err, task.ErrNotFound) {
		return events.Schedule{}, noSchedule(in.Name)
	}
	if err != nil {
		return events.Schedule{}, err
	}
	return intake.ViewSchedule(s), nil
}

func noSchedule(name string) *events.Error {
	return &events.Error{Code: events.CodeNotFound, Field: "name", Value: name, Message: "no schedule has the name " + name}
}

// schedulesAtOnce bounds what is read for a page; a schedule may carry a payload of 512 KiB.
const schedulesAtOnce = 100

func (a *API) listSchedules(ctx context.Context, in events.ScheduleListRequest) (events.ScheduleList, error) {
	if in.After != "" {
		if err := intake.ValidateScheduleName(in.After); err != nil {
			return events.ScheduleList{}, &task.FieldError{Field: "after", Value: in.After, Allowed: "what the page before gave as next"}
		}
	}
	stored, err := a.store.Schedules(ctx, in.After, schedulesAtOnce)
	if err != nil {
		return events.ScheduleList{}, err
	}
	var list events.ScheduleList
	list.Schedules, err = page(a, stored, intake.ViewSchedule)
	if n := len(list.Schedules); n > 0 && (n < len(stored) || n == schedulesAtOnce) {
		list.Next = list.Schedules[n-1].Name
	}
	return list, err
}

func (a *API) deleteSchedule(ctx context.Context, in events.ScheduleRequest) (events.ScheduleRequest, error) {
	if err := intake.ValidateScheduleName(in.Name); err != nil {
		return events.ScheduleRequest{}, err
	}
	deleted, err := a.store.DeleteSchedule(ctx, in.Name)
	if err != nil {
		return events.ScheduleRequest{}, err
	}
	if !deleted {
		return events.ScheduleRequest{}, noSchedule(in.Name)
	}
	return in, nil
}
