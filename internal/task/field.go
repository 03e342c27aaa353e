package task

import (
	"errors"
	"fmt"
	"strconv"
)

// ErrInvalid is what every [FieldError] matches with errors.Is.
var ErrInvalid = errors.New("invalid task")

// FieldError refuses one field of a submission: which field, what it held, and what it may hold.
type FieldError struct {
	Field   string // path in the submit body, e.g. "retry.base"
	Value   string // what was given, shortened
	Allowed string // what would be accepted, as a phrase
	// TooLarge says that the value may be right but is over the limit of a message's size.
	TooLarge bool
}

const shownValue = 64

func (e *FieldError) Error() string {
	v := e.Value
	if len(v) > shownValue {
		v = v[:shownValue] + "..."
	}
	return fmt.Sprintf("field %s: %s is not allowed; give %s", e.Field, strconv.Quote(v), e.Allowed)
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
