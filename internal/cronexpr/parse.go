// Package cronexpr reads cron expressions and computes the instants they stand for.
//
// An expression has five fields (minute, hour, day of month, month, day of week) or six (seconds first), or is one of
// @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, or "@every <duration>" with whole seconds, at least one.
// A field is a list, divided by commas, of *, a number, a range a-b, each of them with or without a step /n; ? is another
// way to write *. Months and days of the week may be named (jan, mon); days of the week count from 0, Sunday, to 6.
//
// If one of the two day fields is * or ?, a day must match the other one. If both are restricted (*/2 counts as restricted)
// a day that matches either of them will do: "0 0 13 * fri" fires on each 13th and on each Friday.
//
// Where clocks change: a schedule whose minute or hour field begins with * follows elapsed time, so it fires at each instant
// whose local time matches, twice in a repeated hour and never in a skipped one. Any other schedule stands for times of
// the local calendar: a time that is skipped fires at the first instant after the gap, a repeated one fires once, the
// first time. Two times that lead to the same instant are one slot.
package cronexpr

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a container without zone files must know the same zones

	"github.com/robfig/cron/v3"

	"github.com/ax-scheduler/ax/internal/task"
)

// MaxEvery is the longest interval of "@every".
const MaxEvery = 366 * 24 * time.Hour

// maxLength bounds what is parsed at all; the longest sensible expressions have some 200 characters.
const maxLength = 512

const allowedCron = `five or six cron fields such as "*/5 * * * *", @hourly, @daily, @weekly, @monthly, @yearly, or "@every 90s"`

var (
	fieldForm = regexp.MustCompile(`^([*?]|[0-9]+|[a-zA-Z]{3})(-([0-9]+|[a-zA-Z]{3}))?(/[0-9]+)?$`)
	zoneForm  = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}$`)
	parser    = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
)

// Parse reads an expression and an IANA zone name; an empty one is UTC. It refuses what it does not understand with a
// [task.FieldError] for the field cron or zone, also a schedule that would never fire.
func Parse(expr, zone string) (Schedule, error) {
	loc, err := parseZone(zone)
	if err != nil {
		return Schedule{}, err
	}
	refuse := func(why string) (Schedule, error) {
		return Schedule{}, &task.FieldError{Field: "cron", Value: expr, Allowed: why}
	}
	if len(expr) > maxLength {
		return refuse(fmt.Sprintf("at most %d characters", maxLength))
	}
	text := strings.TrimSpace(expr)
	if every, ok := strings.CutPrefix(text, "@every"); ok {
		interval, err := time.ParseDuration(strings.TrimSpace(every))
		if err != nil || interval < time.Second || interval > MaxEvery || interval%time.Second != 0 {
			return refuse(`"@every" and a duration of whole seconds from 1s to 8784h, such as "@every 90s"`)
		}
		return Schedule{every: interval}, nil
	}
	// The parser panics on some zone prefixes, takes "*-5" for "*" and ignores empty list entries, so it only gets to see
	// what has the form of an expression.
	fields := strings.Fields(text)
	switch {
	case strings.Contains(text, "="):
		return refuse("an expression without TZ=; the zone is a field of its own")
	case strings.HasPrefix(text, "@"):
	case len(fields) != 5 && len(fields) != 6:
		return refuse(allowedCron)
	default:
		if why := checkFields(fields); why != "" {
			return refuse(why)
		}
	}
	parsed, err := parser.Parse(text)
	if err != nil {
		return refuse(allowedCron + " (" + err.Error() + ")")
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return refuse(allowedCron)
	}
	s := Schedule{spec: *spec, loc: loc, elapsed: followsElapsedTime(text, fields)}
	if s.nextWall(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return refuse("a day that exists: this schedule would never fire")
	}
	return s, nil
}

func parseZone(zone string) (*time.Location, error) {
	if zone == "" {
		return time.UTC, nil
	}
	// "Local" would mean something else on each host.
	if len(zone) <= 64 && zone != "Local" && zoneForm.MatchString(zone) {
		if loc, err := time.LoadLocation(zone); err == nil {
			return loc, nil
		}
	}
	return nil, &task.FieldError{Field: "zone", Value: zone, Allowed: `an IANA zone name such as "Europe/Berlin", or nothing for UTC`}
}

// spans is the largest step that makes sense in each of the six fields: above it only the first value would ever match,
// which is hardly what "*/90" was meant to say.
var spans = [6]int{59, 59, 23, 30, 11, 6}

func checkFields(fields []string) (why string) {
	offset := 6 - len(fields)
	for i, field := range fields {
		for _, entry := range strings.Split(field, ",") {
			form := fieldForm.FindStringSubmatch(entry)
			switch {
			case form == nil, form[1] == "*" && form[2] != "", form[1] == "?" && form[2] != "":
				return fmt.Sprintf("%s; %q in field %d is none", allowedCron, entry, i+1)
			case form[4] != "":
				if step, err := strconv.Atoi(form[4][1:]); err != nil || step < 1 || step > spans[offset+i] {
					return fmt.Sprintf(`a step from 1 to %d in field %d; for other intervals use "@every 90m"`, spans[offset+i], i+1)
				}
			}
		}
	}
	return ""
}

func followsElapsedTime(text string, fields []string) bool {
	if strings.HasPrefix(text, "@") {
		return text == "@hourly"
	}
	clock := fields[len(fields)-5 : len(fields)-3] // minute and hour, with or without a seconds field before them
	return strings.ContainsAny(clock[0][:1]+clock[1][:1], "*?")
}
