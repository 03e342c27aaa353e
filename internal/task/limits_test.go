package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Names that became subjects, consumers or protocol lines in other products.
var nastyNames = []string{
	"", " ", "*", ">", "a.*", "a.>", "a.b", "a.b.c", ".a", "a.", ".", "a b", "a\tb", "a\r\nPUB x 1", "a\x00b",
	"$JS.API.STREAM.DELETE.x", strings.Repeat("x", 300), "émoji😀", "A", "Email", "-a", "_a", "a/b", "a\\b", "a%2eb", "a|b", "a:b",
	"\xff", "a\u202eb", "\ufeffa",
}

func TestTypesThatAreRefused(t *testing.T) {
	for _, name := range nastyNames {
		t.Run(fmt.Sprintf("%.20q", name), func(t *testing.T) {
			requireField(t, ValidateType(name), "type")
		})
	}
	for _, name := range []string{"a", "0", "a_b", "a-b", "email", "9lives", strings.Repeat("x", MaxTypeLength)} {
		require.NoError(t, ValidateType(name), name)
	}
}

func TestIDsThatAreRefused(t *testing.T) {
	legal := map[string]bool{ // nasty as a type, harmless as an id, which never becomes a subject
		"a.b": true, "a.b.c": true, ".a": true, "a.": true, ".": true, "A": true, "Email": true, "-a": true, "_a": true, "a:b": true,
	}
	for _, id := range append([]string{strings.Repeat("x", MaxIDLength+1)}, nastyNames...) {
		t.Run(fmt.Sprintf("%.20q", id), func(t *testing.T) {
			if legal[id] {
				require.NoError(t, ValidateID(id))
				return
			}
			requireField(t, ValidateID(id), "id")
			require.False(t, WellFormedID(id))
		})
	}
	for _, id := range []string{"cron:x", "cron:", "ax:", "ax:1"} {
		requireField(t, ValidateID(id), "id")
		require.True(t, WellFormedID(id), "%s is well formed: ax itself makes such ids", id)
	}
	require.NoError(t, ValidateID(strings.Repeat("x", MaxIDLength)))
	require.NoError(t, ValidateID("cronjob:1"))
}

// Whatever is accepted must be safe where it is put: a subject token, a URL path segment, a metric label.
func TestAcceptedNamesAreSafe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-zA-Z0-9._:*> -]{0,140}`)).Draw(rt, "name")
		if ValidateType(s) == nil && (s == "" || strings.ContainsAny(s, ".*> \t\r\n/|%:") || s != strings.ToLower(s) || len(s) > MaxTypeLength) {
			rt.Fatalf("type %q was accepted", s)
		}
		if ValidateID(s) == nil && (s == "" || strings.ContainsAny(s, "*> \t\r\n/|%") || len(s) > MaxIDLength) {
			rt.Fatalf("id %q was accepted", s)
		}
	})
}

func TestLanesAndPrioritiesAgree(t *testing.T) {
	covered := map[int]Lane{}
	for _, lane := range Lanes {
		first, last := lane.Priorities()
		for p := first; p <= last; p++ {
			require.NotContains(t, covered, p, "priority %d is in two lanes", p)
			covered[p] = lane
			require.Equal(t, lane, LaneOf(p))
			require.Equal(t, lane, (&Task{Priority: p}).Lane())
		}
	}
	require.Len(t, covered, MaxPriority-MinPriority+1)
	require.Equal(t, High, LaneOf(-1))
	require.Equal(t, Low, LaneOf(10))
	require.Equal(t, []Lane{High, Normal, Low}, Lanes)
	require.Equal(t, Normal, LaneOf(DefaultPriority))
}

func validTask() *Task {
	return &Task{ID: "t1", Type: "email", Priority: DefaultPriority, MaxAttempts: DefaultMaxAttempts, MaxLosses: DefaultMaxLosses,
		Timeout: DefaultTimeout, Retry: DefaultRetry, OnExhausted: DeadLetter}
}

func TestValidateTask(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	many := map[string]string{}
	for i := range MaxLabels + 1 {
		many[fmt.Sprint(i)] = "x"
	}
	for name, c := range map[string]struct {
		change func(*Task)
		field  string // empty: accepted
	}{
		"as it is":               {func(*Task) {}, ""},
		"type":                   {func(t *Task) { t.Type = "a.b" }, "type"},
		"id":                     {func(t *Task) { t.ID = "a b" }, "id"},
		"id of ax's own":         {func(t *Task) { t.ID = "cron:x:2026-01-01T00:00:00Z" }, ""},
		"priority 0":             {func(t *Task) { t.Priority = 0 }, ""},
		"priority 9":             {func(t *Task) { t.Priority = 9 }, ""},
		"priority 10":            {func(t *Task) { t.Priority = 10 }, "priority"},
		"priority -1":            {func(t *Task) { t.Priority = -1 }, "priority"},
		"no attempts":            {func(t *Task) { t.MaxAttempts = 0 }, "maxAttempts"},
		"negative attempts":      {func(t *Task) { t.MaxAttempts = -1 }, "maxAttempts"},
		"too many attempts":      {func(t *Task) { t.MaxAttempts = MaxMaxAttempts + 1 }, "maxAttempts"},
		"at most once":           {func(t *Task) { t.MaxLosses = 0 }, ""},
		"negative losses":        {func(t *Task) { t.MaxLosses = -1 }, "maxLosses"},
		"too many losses":        {func(t *Task) { t.MaxLosses = MaxMaxLosses + 1 }, "maxLosses"},
		"no timeout":             {func(t *Task) { t.Timeout = 0 }, "timeout"},
		"negative timeout":       {func(t *Task) { t.Timeout = -time.Second }, "timeout"},
		"timeout over a week":    {func(t *Task) { t.Timeout = MaxTimeout + 1 }, "timeout"},
		"largest payload":        {func(t *Task) { t.Payload = make(json.RawMessage, MaxPayload) }, ""},
		"payload too large":      {func(t *Task) { t.Payload = make(json.RawMessage, MaxPayload+1) }, "payload"},
		"scheduled":              {func(t *Task) { t.ScheduledAt = at }, ""},
		"scheduled in 1969":      {func(t *Task) { t.ScheduledAt = time.Unix(-1, 0).UTC() }, "scheduledAt"},
		"scheduled in year 2201": {func(t *Task) { t.ScheduledAt = at.AddDate(171, 0, 0) }, "scheduledAt"},
		"expires":                {func(t *Task) { t.ExpiresAt = at }, ""},
		"expires in year 10000":  {func(t *Task) { t.ExpiresAt = at.AddDate(7970, 0, 0) }, "expiresAt"},
		"expires in year 1":      {func(t *Task) { t.ExpiresAt = time.Date(1, 2, 1, 0, 0, 0, 0, time.UTC) }, "expiresAt"},
		"expires before start":   {func(t *Task) { t.ScheduledAt, t.ExpiresAt = at, at.Add(-1) }, "expiresAt"},
		"expires at start":       {func(t *Task) { t.ScheduledAt, t.ExpiresAt = at, at }, "expiresAt"},
		"onExhausted":            {func(t *Task) { t.OnExhausted = "forget" }, "onExhausted"},
		"retry":                  {func(t *Task) { t.Retry.Factor = 0 }, "retry.factor"},
		"bizKey with bars":       {func(t *Task) { t.BizKey = "order|7|é😀" }, ""},
		"bizKey too long":        {func(t *Task) { t.BizKey = strings.Repeat("x", MaxBizKey+1) }, "bizKey"},
		"bizKey with NUL":        {func(t *Task) { t.BizKey = "a\x00" }, "bizKey"},
		"bizKey with ESC":        {func(t *Task) { t.BizKey = "\x1b[31mred" }, "bizKey"},
		"bizKey with C1":         {func(t *Task) { t.BizKey = "a\u0085" }, "bizKey"},
		"bizKey turned around":   {func(t *Task) { t.BizKey = "a\u202eb" }, "bizKey"},
		"bizKey line separator":  {func(t *Task) { t.BizKey = "a\u2028b" }, "bizKey"},
		"bizKey not UTF-8":       {func(t *Task) { t.BizKey = "a\xff" }, "bizKey"},
		"labels":                 {func(t *Task) { t.Labels = map[string]string{"tenant": "a", "sehr gut": ""} }, ""},
		"too many labels":        {func(t *Task) { t.Labels = many }, "labels"},
		"label without a name":   {func(t *Task) { t.Labels = map[string]string{"": "a"} }, "labels"},
		"label name $":           {func(t *Task) { t.Labels = map[string]string{"$set": "a"} }, "labels"},
		"label name dotted":      {func(t *Task) { t.Labels = map[string]string{"a.b": "a"} }, "labels"},
		"label name with CR":     {func(t *Task) { t.Labels = map[string]string{"a\r": "a"} }, "labels"},
		"label value with LF":    {func(t *Task) { t.Labels = map[string]string{"a": "b\nc"} }, "labels.a"},
		"label value too long":   {func(t *Task) { t.Labels = map[string]string{"a": strings.Repeat("x", MaxLabelLength+1)} }, "labels.a"},
		"echo too large":         {func(t *Task) { t.Echo = strings.Repeat("x", MaxEcho+1) }, "labels"},
	} {
		t.Run(name, func(t *testing.T) {
			task := validTask()
			c.change(task)
			if c.field == "" {
				require.NoError(t, task.Validate())
				return
			}
			requireField(t, task.Validate(), c.field)
		})
	}
}

func TestValidateBy(t *testing.T) {
	for _, by := range []string{"", "api", "ops@example.com", strings.Repeat("x", MaxBy)} {
		require.NoError(t, ValidateBy(by), by)
	}
	for _, by := range []string{"a|b", "a\nb", "\x1b[0m", "\xff", strings.Repeat("x", MaxBy+1)} {
		requireField(t, ValidateBy(by), "by")
	}
}

func TestFieldErrorText(t *testing.T) {
	err := &FieldError{Field: "type", Value: strings.Repeat("x", 1000) + "\n", Allowed: "less"}
	require.Less(t, len(err.Error()), 120)
	require.NotContains(t, (&FieldError{Field: "id", Value: "a\r\nb", Allowed: "less"}).Error(), "\n")
}

func TestExecutionID(t *testing.T) {
	require.Equal(t, "c1:t1", (&Task{ID: "t1", Claim: "c1"}).ExecutionID())
	require.Empty(t, (&Task{ID: "t1"}).ExecutionID())
}

func requireField(t *testing.T, err error, field string) {
	t.Helper()
	var refused *FieldError
	require.True(t, errors.As(err, &refused), "got %v", err)
	require.Equal(t, field, refused.Field)
	require.NotEmpty(t, refused.Allowed)
}

// What is accepted as an id or a type goes into subjects, change strings and execution ids, whose parts it must not break.
func FuzzValidateNames(f *testing.F) {
	for _, name := range []string{"", "a", "email", "Order-7.b_c", "cron:nightly:2026-01-01T00:00:00Z", "ax:x", "a|b", "a.*", "a b", "\x00", "ä", "a>", "-a", strings.Repeat("x", 200)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		id, kind := ValidateID(name), ValidateType(name)
		for field, err := range map[string]error{"id": id, "type": kind} {
			if wrong, ok := errors.AsType[*FieldError](err); err != nil {
				require.True(t, ok && wrong.Field == field && wrong.Allowed != "", "%v", err)
			}
		}
		if id == nil || kind == nil {
			require.NotEmpty(t, name)
			require.LessOrEqual(t, len(name), MaxIDLength)
			require.False(t, strings.ContainsAny(name, "|*> \t\r\n/\x00"), "%q", name)
			require.True(t, utf8.ValidString(name))
		}
		if id == nil {
			require.True(t, WellFormedID(name))
			require.False(t, strings.HasPrefix(name, "cron:"), "those belong to schedules")
		}
		if kind == nil {
			require.NotContains(t, name, ".", "it is one token of a subject")
		}
	})
}
