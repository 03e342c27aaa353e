package client

import (
	"context"

	"github.com/ax-scheduler/ax/pkg/events"
)

// PutSchedule stores a schedule, or replaces the one of that name, and returns it with its next fire time.
func (c *Client) PutSchedule(ctx context.Context, s events.Schedule) (events.Schedule, error) {
	var stored events.Schedule
	err := c.request(ctx, events.APISchedulePut, s, &stored)
	return stored, err
}

// GetSchedule returns a schedule; code not_found when there is none.
func (c *Client) GetSchedule(ctx context.Context, name string) (events.Schedule, error) {
	var s events.Schedule
	err := c.request(ctx, events.APIScheduleGet, events.ScheduleRequest{Name: name}, &s)
	return s, err
}

// ListSchedules returns one page of schedules by name; pass the reply's Next as after for the next one.
func (c *Client) ListSchedules(ctx context.Context, after string) (events.ScheduleList, error) {
	var list events.ScheduleList
	err := c.request(ctx, events.APIScheduleList, events.ScheduleListRequest{After: after}, &list)
	return list, err
}

// DeleteSchedule removes a schedule. Tasks that it made stay.
func (c *Client) DeleteSchedule(ctx context.Context, name string) error {
	return c.request(ctx, events.APIScheduleDelete, events.ScheduleRequest{Name: name}, nil)
}
