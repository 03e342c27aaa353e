package intake

import (
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// setUnique fills in what a submission asks of its unique key. Members that would have no effect are refused: whoever sends them expects
// one.
func setUnique(t *task.Task, u *events.Unique, at time.Time) (err error) {
	if u == nil {
		return nil
	}
	t.UniqueKey = u.Key
	t.Unique = &task.Unique{Scope: task.ScopeActive, OnConflict: task.ConflictReject, At: at}
	if u.Scope != "" {
		t.Unique.Scope = task.UniqueScope(u.Scope)
	}
	if u.OnConflict != "" {
		t.Unique.OnConflict = task.OnConflict(u.OnConflict)
	}
	refused := func(field, value, allowed string) error {
		return &task.FieldError{Field: "unique." + field, Value: value, Allowed: allowed}
	}
	switch t.Unique.Scope {
	case task.ScopeActive, task.ScopeForever:
		if u.For != nil {
			return refused("for", *u.For, "nothing, unless unique.scope is duration")
		}
	case task.ScopeDuration:
		if u.For == nil {
			return refused("for", "", "a duration, because unique.scope is duration")
		}
		if t.Unique.For, err = parseDuration("unique.for", *u.For); err != nil {
			return err
		}
		if t.Unique.For < time.Second || t.Unique.For > task.MaxUniqueFor {
			return refused("for", *u.For, "a duration from 1s to 8760h")
		}
	default:
		return refused("scope", u.Scope, "active, duration or forever")
	}
	switch t.Unique.OnConflict {
	case task.ConflictReject, task.ConflictKeep, task.ConflictReplace:
		if u.MaxWait != nil {
			return refused("maxWait", *u.MaxWait, "nothing, unless unique.onConflict is debounce")
		}
	case task.ConflictDebounce:
		if t.Delay <= 0 {
			return refused("onConflict", u.OnConflict, "debounce only beside a delay, which is how long it has to be quiet")
		}
		t.Unique.MaxWait = task.DebounceWaits * t.Delay
		if u.MaxWait == nil {
			break
		}
		if t.Unique.MaxWait, err = parseDuration("unique.maxWait", *u.MaxWait); err != nil {
			return err
		}
		if t.Unique.MaxWait < t.Delay || t.Unique.MaxWait > task.MaxUniqueFor {
			return refused("maxWait", *u.MaxWait, "a duration from the delay to 8760h")
		}
	default:
		return refused("onConflict", u.OnConflict, "reject, keep, replace or debounce")
	}
	return nil
}

// Answer tells the sender of a task what an insert made of it. The error is the refusal, an [*events.Error].
func Answer(t *task.Task, status task.InsertStatus) (events.Answer, error) {
	switch status {
	case task.Conflict:
		return events.Answer{ID: t.ID}, IDConflict(t.ID)
	case task.Held:
		if t.Unique.OnConflict == task.ConflictKeep || t.Unique.Newer {
			return events.Answer{ID: t.Unique.Holder, Accepted: true, Duplicate: true}, nil
		}
		return events.Answer{ID: t.ID}, uniqueHeld(t)
	case task.NoTransactions:
		e := unsupported("unique", "")
		e.Message = "field unique: the database is a standalone server, without the transactions that this needs; leave it out, or make the server a replica set"
		return events.Answer{ID: t.ID}, e
	}
	return events.Answer{ID: t.ID, Accepted: true, Duplicate: status == task.Duplicate}, nil
}

func uniqueHeld(t *task.Task) *events.Error {
	return &events.Error{
		Code: events.CodeUniqueHeld, Field: "unique.key", Value: t.UniqueKey, Holder: t.Unique.Holder, Allowed: "a key that no other task of the type holds",
		Message: fmt.Sprintf("field unique.key: %q is held by task %s; wait until it is free, or submit with onConflict keep to be given that id",
			t.UniqueKey, t.Unique.Holder),
	}
}
