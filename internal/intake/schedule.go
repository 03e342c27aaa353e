package intake

import (
	"strconv"
	"time"

	"github.com/ax-scheduler/ax/internal/cronexpr"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// BuildSchedule checks a schedule and its template as they come in and makes what is stored. The slots of "@every" are
// counted from now, the database's time; NextAt is the first slot after it.
func BuildSchedule(s *events.Schedule, now time.Time) (*task.Schedule, error) {
	built, err := buildSchedule(s, now)
	if err != nil {
		return nil, Refusal(err)
	}
	return built, nil
}

func buildSchedule(s *events.Schedule, now time.Time) (*task.Schedule, error) {
	if err := ValidateScheduleName(s.Name); err != nil {
		return nil, err
	}
	if s.Overlap != "" && s.Overlap != task.OverlapAllow {
		e := unsupported("overlap", s.Overlap)
		e.Allowed = task.OverlapAllow
		return nil, e
	}
	missed, err := misfire(s)
	if err != nil {
		return nil, err
	}
	for _, f := range [...]struct {
		name  string
		given bool
	}{
		{"nextAt", s.NextAt != ""}, {"lastAt", s.LastAt != ""}, {"broken", s.Broken != ""},
		{"task.id", s.Task.ID != ""}, {"task.scheduledAt", s.Task.ScheduledAt != nil}, {"task.delay", s.Task.Delay != nil},
		{"task.expiresAt", s.Task.ExpiresAt != nil},
	} {
		if f.given {
			return nil, events.Invalid(f.name, "a value", "nothing: the schedule decides it")
		}
	}
	parsed, err := cronexpr.Parse(s.Cron, s.Zone)
	if err != nil {
		return nil, err
	}
	if _, err := Build(&s.Task.Submit, Origin{Type: s.Task.Type, ID: "cron:" + s.Name, Now: now}); err != nil {
		return nil, below("task.", err)
	}
	template, err := events.Encode(s.Task.Submit)
	if err != nil {
		return nil, err
	}
	built := &task.Schedule{Name: s.Name, Cron: s.Cron, Zone: s.Zone, Misfire: missed.Misfire, CatchUp: missed.CatchUp, CatchUpMax: missed.CatchUpMax,
		Overlap: task.OverlapAllow, TaskType: s.Task.Type, Template: template}
	if parsed.Every() > 0 {
		built.Anchor = now.UTC().Truncate(time.Second)
	}
	built.NextAt = parsed.Anchored(built.Anchor).Next(now)
	return built, nil
}

const (
	mostCatchUp    = 31 * 24 * time.Hour
	mostCatchUpMax = 1000
)

// misfire returns the policy for missed slots, with its bounds where it has any.
func misfire(s *events.Schedule) (p task.Schedule, err error) {
	switch s.Misfire {
	case "", task.MisfireOnce:
		p.Misfire = task.MisfireOnce
	case task.MisfireSkip, task.MisfireAll:
		p.Misfire = s.Misfire
	default:
		return p, &task.FieldError{Field: "misfire", Value: s.Misfire, Allowed: "skip, once or all"}
	}
	if p.Misfire != task.MisfireAll {
		const nothing = "nothing, unless misfire is all"
		switch {
		case s.CatchUp != "":
			return p, &task.FieldError{Field: "catchUp", Value: s.CatchUp, Allowed: nothing}
		case s.CatchUpMax != 0:
			return p, &task.FieldError{Field: "catchUpMax", Value: strconv.Itoa(s.CatchUpMax), Allowed: nothing}
		}
		return p, nil
	}
	p.CatchUp, p.CatchUpMax = task.DefaultCatchUp, task.DefaultCatchUpMax
	if s.CatchUp != "" {
		if p.CatchUp, err = parseDuration("catchUp", s.CatchUp); err != nil {
			return p, err
		}
		if p.CatchUp < time.Second || p.CatchUp > mostCatchUp {
			return p, &task.FieldError{Field: "catchUp", Value: s.CatchUp, Allowed: "1s to 744h"}
		}
	}
	if s.CatchUpMax != 0 {
		p.CatchUpMax = s.CatchUpMax
	}
	if p.CatchUpMax < 1 || p.CatchUpMax > mostCatchUpMax {
		return p, &task.FieldError{Field: "catchUpMax", Value: strconv.Itoa(s.CatchUpMax), Allowed: "1 to 1000"}
	}
	return p, nil
}

// ValidateScheduleName checks the name of a schedule: 1 to 64 characters of a-z 0-9 _ -.
func ValidateScheduleName(name string) error {
	if refused := task.ValidateType(name); refused != nil {
		e := Refusal(refused)
		return &task.FieldError{Field: "name", Value: name, Allowed: e.Allowed}
	}
	return nil
}

// below puts the path of the member that a refused submission stands in before the field.
func below(path string, err error) *events.Error {
	e := *Refusal(err)
	e.Field = path + e.Field
	return &e
}

// Slot makes the task of one slot of a schedule. A [task.FieldError] says that no slot of this schedule can become a task:
// its template, planted or stored by another version, is refused.
func Slot(s task.Schedule, id string) (*task.Task, error) {
	sub, err := events.DecodeSubmit(s.Template)
	if err == nil {
		var t *task.Task
		// Without a time: templates name none, and a slot's task starts at once.
		if t, err = Build(&sub, Origin{Type: s.TaskType, ID: id, Repeated: true, Source: SourceCron, Body: s.Template}); err == nil {
			return t, nil
		}
	}
	e := below("task.", err)
	return nil, &task.FieldError{Field: e.Field, Value: e.Value, Allowed: e.Allowed + " (" + e.Message + ")"}
}

// ViewSchedule shows a schedule as the API does. A template that cannot be read any more is left out.
func ViewSchedule(s task.Schedule) events.Schedule {
	v := events.Schedule{Name: s.Name, Cron: s.Cron, Zone: s.Zone, Misfire: s.Misfire, CatchUpMax: s.CatchUpMax, Overlap: s.Overlap,
		NextAt: formatTime(s.NextAt), LastAt: formatTime(s.LastAt), Broken: s.Broken}
	if s.CatchUp > 0 {
		v.CatchUp = s.CatchUp.String()
	}
	v.Task.Type = s.TaskType
	if sub, err := events.DecodeSubmit(s.Template); err == nil {
		v.Task.Submit = sub
	}
	return v
}
