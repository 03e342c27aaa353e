package intake

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		err         error
		code, field string
	}{
		"field":     {fmt.Errorf("build: %w", &task.FieldError{Field: "timeout", Value: "x", Allowed: "y"}), events.CodeInvalid, "timeout"},
		"size":      {&task.FieldError{Field: "payload", Value: "x", Allowed: "y", TooLarge: true}, events.CodeTooLarge, "payload"},
		"not UTF-8": {(&task.Task{ID: "a", Type: "a", MaxAttempts: 1, Timeout: time.Second, Payload: []byte("\"\xff\"")}).Validate(), events.CodeInvalid, "payload"},
		"passed on": {fmt.Errorf("decode: %w", &events.Error{Code: "c", Field: "f", Message: "m"}), "c", "f"},
		"not found": {fmt.Errorf("get: %w", task.ErrNotFound), events.CodeNotFound, "id"},
		"conflict":  {task.ErrIDConflict, events.CodeIDConflict, "id"},
		"taken":     {IDConflict("a"), events.CodeIDConflict, "id"},
		"finished":  {task.ErrAlreadyFinished, events.CodeFinished, "id"},
		"timeout":   {fmt.Errorf("insert: %w", context.DeadlineExceeded), events.CodeUnavailable, ""},
		"clock":     {task.ErrClock, events.CodeUnavailable, ""},
		"other":     {errors.New("mongodb://user:secret@db refused"), events.CodeUnavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Refusal(c.err)
			require.Equal(t, c.code, got.Code)
			require.Equal(t, c.field, got.Field)
			require.NotEmpty(t, got.Message)
			require.NotContains(t, got.Message, "secret")
		})
	}
}
