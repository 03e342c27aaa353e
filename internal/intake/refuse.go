package intake

import (
	"context"
	"errors"
	"fmt"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Refusal is the one place that turns an error into what a caller is told. An [*events.Error] is passed on. What is neither a
// refusal nor an answer of the store counts as unavailable: the caller should try again, and the cause is for the log.
func Refusal(err error) *events.Error {
	if refused, ok := errors.AsType[*events.Error](err); ok {
		return refused
	}
	if field, ok := errors.AsType[*task.FieldError](err); ok {
		e := &events.Error{Code: events.CodeInvalid, Field: field.Field, Value: events.Shorten(field.Value), Allowed: field.Allowed, Message: field.Error()}
		if field.TooLarge {
			e.Code = events.CodeTooLarge
		}
		return e
	}
	switch {
	case errors.Is(err, task.ErrNotFound):
		return &events.Error{Code: events.CodeNotFound, Field: "id", Message: "no task has this id; it may have been archived and removed, or never stored"}
	case errors.Is(err, task.ErrIDConflict):
		return IDConflict("")
	case errors.Is(err, task.ErrAlreadyFinished):
		return &events.Error{Code: events.CodeFinished, Field: "id", Message: "this task has ended; nothing was changed"}
	case errors.Is(err, context.DeadlineExceeded):
		return &events.Error{Code: events.CodeUnavailable, Message: "the database did not answer in time; what was asked may or may not have happened. Try again: with the same id a submission is stored once"}
	}
	return &events.Error{Code: events.CodeUnavailable, Message: "the database cannot be asked at present; try again in a few seconds"}
}

// IDConflict refuses a submission whose id another one has; an empty id is one that is not known.
func IDConflict(id string) *events.Error {
	e := &events.Error{Code: events.CodeIDConflict, Field: "id", Value: id, Allowed: "an id that is not in use, or the same submission as before to ask again"}
	e.Message = fmt.Sprintf("field id: %q belongs to another submission; give %s", id, e.Allowed)
	if id == "" {
		e.Message = "this id belongs to another submission; give " + e.Allowed
	}
	return e
}

// unsupported refuses a field, or one value of it, that a later version may accept.
func unsupported(field, value string) *events.Error {
	e := &events.Error{Code: events.CodeUnsupported, Field: field, Value: events.Shorten(value)}
	if value == "" {
		e.Message = fmt.Sprintf("field %s is not supported by this version of ax; leave it out", field)
	} else {
		e.Message = fmt.Sprintf("field %s: %q is not supported by this version of ax", field, e.Value)
	}
	return e
}
