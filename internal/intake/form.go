package intake

import (
	"regexp"
	"strings"
	"time"

	"github.com/sosodev/duration"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	allowedDuration = `a duration with a unit, such as "90s", "1h30m" or "PT90S", not negative`
	allowedTime     = `a time in RFC 3339 with a zone, such as "2026-01-02T15:04:05Z" or "2026-01-02T15:04:05+02:00"`
)

// isoForm is what of ISO 8601 is taken: weeks, or days and a time, each unit at most once and in order. The library that
// converts it is more generous than that.
var isoForm = regexp.MustCompile(`^P([0-9]+W|([0-9]+D)?(T([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?)$`)

// isoCalendar recognises years and months, whose length depends on the day they begin.
var isoCalendar = regexp.MustCompile(`^P[^T]*[YM]`)

func durationOr(field string, given *string, otherwise time.Duration) (time.Duration, error) {
	if given == nil {
		return otherwise, nil
	}
	return parseDuration(field, *given)
}

// parseDuration reads a Go or ISO 8601 duration.
func parseDuration(field, text string) (time.Duration, error) {
	refused := &task.FieldError{Field: field, Value: text, Allowed: allowedDuration}
	switch {
	case strings.HasPrefix(text, "P"):
		if isoCalendar.MatchString(text) {
			refused.Allowed = `a duration without years and months, whose length varies: weeks, days, hours, minutes or seconds`
			return 0, refused
		}
		d, err := duration.Parse(text)
		if err != nil || len(text) > 64 || !isoForm.MatchString(text) || strings.HasSuffix(text, "P") || strings.HasSuffix(text, "T") {
			return 0, refused
		}
		// The conversion below wraps round when the sum does not fit.
		if hours := (d.Weeks*7+d.Days)*24 + d.Hours + d.Minutes/60 + d.Seconds/3600; hours > maxHours {
			return 0, refused
		}
		return d.ToTimeDuration(), nil
	case text == "0", strings.HasPrefix(text, "-"): // the only number that Go takes without a unit
		return 0, refused
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, refused
	}
	return d, nil
}

const maxHours = 290 * 365 * 24 // a time.Duration holds 292 years

// parseTime reads a time strictly and rounds it up to the millisecond that is stored: nothing starts before its time.
func parseTime(field, text string) (time.Time, error) {
	var t time.Time
	if err := t.UnmarshalText([]byte(text)); err != nil {
		return time.Time{}, &task.FieldError{Field: field, Value: text, Allowed: allowedTime}
	}
	if t.UTC().Year() < 1970 || t.After(task.MaxTime) { // the year 1 is a variable without a value, the year 56000 a wrong unit
		return time.Time{}, &task.FieldError{Field: field, Value: text, Allowed: "a time from 1970 to 2200"}
	}
	return wholeMillis(t.UTC()), nil
}

func wholeMillis(t time.Time) time.Time {
	if down := t.Truncate(time.Millisecond); down.Before(t) {
		return down.Add(time.Millisecond)
	}
	return t
}
