package cronexpr

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slots returns the first n slots after a time, written in the zone.
func slots(t *testing.T, expr, zone, after string, n int) []string {
	t.Helper()
	s, err := Parse(expr, zone)
	require.NoError(t, err)
	at, err := time.Parse(time.RFC3339, after)
	require.NoError(t, err)
	loc, err := time.LoadLocation(zone)
	require.NoError(t, err)
	var got []string
	for range n {
		next := s.Next(at)
		require.True(t, next.After(at), "%s after %s", next, at)
		require.Equal(t, time.UTC, next.Location())
		got = append(got, next.In(loc).Format(time.RFC3339))
		at = next
	}
	return got
}

func TestNext(t *testing.T) {
	for name, c := range map[string]struct {
		expr, after string
		want        []string
	}{
		"every five minutes":   {"*/5 * * * *", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"}},
		"strictly after":       {"0 12 * * *", "2026-01-01T12:00:00Z", []string{"2026-01-02T12:00:00Z"}},
		"just before":          {"0 12 * * *", "2026-01-01T11:59:59Z", []string{"2026-01-01T12:00:00Z"}},
		"seconds":              {"*/20 * * * * *", "2026-01-01T00:00:10Z", []string{"2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z", "2026-01-01T00:01:00Z"}},
		"six fields, fixed":    {"30 15 10 * * *", "2026-01-01T00:00:00Z", []string{"2026-01-01T10:15:30Z", "2026-01-02T10:15:30Z"}},
		"lists and ranges":     {"0,30 9-11/2 * * *", "2026-01-01T09:10:00Z", []string{"2026-01-01T09:30:00Z", "2026-01-01T11:00:00Z", "2026-01-01T11:30:00Z", "2026-01-02T09:00:00Z"}},
		"names":                {"0 0 * JAN mon-Tue", "2026-01-05T00:00:00Z", []string{"2026-01-06T00:00:00Z", "2026-01-12T00:00:00Z"}},
		"start and step":       {"50/5 * * * *", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:50:00Z", "2026-01-01T00:55:00Z", "2026-01-01T01:50:00Z"}},
		"either day will do":   {"0 0 13 * fri", "2026-02-01T00:00:00Z", []string{"2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z", "2026-02-27T00:00:00Z", "2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z"}},
		"star and weekday":     {"0 0 * * fri", "2026-02-01T00:00:00Z", []string{"2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z"}},
		"question mark":        {"0 0 13 * ?", "2026-02-01T00:00:00Z", []string{"2026-02-13T00:00:00Z", "2026-03-13T00:00:00Z"}},
		"stepped star is used": {"0 0 */10 * mon", "2026-02-01T00:00:00Z", []string{"2026-02-02T00:00:00Z", "2026-02-09T00:00:00Z", "2026-02-11T00:00:00Z"}},
		"leap day":             {"0 0 29 2 *", "2096-02-29T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		"31st":                 {"0 0 31 * *", "2026-01-31T00:00:00Z", []string{"2026-03-31T00:00:00Z", "2026-05-31T00:00:00Z"}},
		"end of the year":      {"59 23 31 12 *", "2026-12-31T23:59:00Z", []string{"2027-12-31T23:59:00Z"}},
		"hourly":               {"@hourly", "2026-01-01T00:00:00Z", []string{"2026-01-01T01:00:00Z"}},
		"daily":                {"@daily", "2026-01-01T00:00:00Z", []string{"2026-01-02T00:00:00Z"}},
		"midnight":             {" @midnight ", "2026-01-01T00:00:00Z", []string{"2026-01-02T00:00:00Z"}},
		"weekly":               {"@weekly", "2026-01-01T00:00:00Z", []string{"2026-01-04T00:00:00Z"}},
		"monthly":              {"@monthly", "2026-01-01T00:00:00Z", []string{"2026-02-01T00:00:00Z"}},
		"yearly":               {"@yearly", "2026-01-01T00:00:00Z", []string{"2027-01-01T00:00:00Z"}},
		"annually":             {"@annually", "2026-01-01T00:00:00Z", []string{"2027-01-01T00:00:00Z"}},
		"every, from 1970":     {"@every 90s", "1970-01-01T00:01:00Z", []string{"1970-01-01T00:01:30Z", "1970-01-01T00:03:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, slots(t, c.expr, "UTC", c.after, len(c.want)))
		})
	}
}

// One slot for each local day, whatever the clock does that night; what follows elapsed time is neither held up nor doubled
// beyond it.
func TestNightsWhenClocksChange(t *testing.T) {
	for name, c := range map[string]struct {
		expr, zone, after string
		want              []string
	}{
		"gap, New York": {"30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z",
			[]string{"2026-03-07T02:30:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"}},
		"overlap, New York": {"30 1 * * *", "America/New_York", "2026-10-31T00:00:00Z",
			[]string{"2026-10-31T01:30:00-04:00", "2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		"overlap, asked in the repeated hour": {"30 1 * * *", "America/New_York", "2026-11-01T06:10:00Z",
			[]string{"2026-11-02T01:30:00-05:00"}},
		"gap, London": {"30 1 * * *", "Europe/London", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T02:00:00+01:00", "2026-03-30T01:30:00+01:00"}},
		"gap of half an hour, Lord Howe": {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		"overlap of half an hour, Lord Howe": {"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z",
			[]string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		"no midnight, Sao Paulo": {"0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z",
			[]string{"2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"}},
		"a day that never was, Apia": {"30 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z",
			[]string{"2011-12-31T00:00:00+14:00", "2011-12-31T12:30:00+14:00"}},
		"skipped times are one slot": {"0,15,30,45 2 * * *", "America/New_York", "2026-03-08T00:00:00Z",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"}},
		"and one slot with the instant after": {"0,30 2,3 * * *", "America/New_York", "2026-03-08T00:00:00Z",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-08T03:30:00-04:00", "2026-03-09T02:00:00-04:00"}},
		"elapsed through a gap": {"*/30 * * * *", "America/New_York", "2026-03-08T06:15:00Z",
			[]string{"2026-03-08T01:30:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-08T03:30:00-04:00"}},
		"elapsed through an overlap": {"0 * * * *", "America/New_York", "2026-11-01T04:30:00Z",
			[]string{"2026-11-01T01:00:00-04:00", "2026-11-01T01:00:00-05:00", "2026-11-01T02:00:00-05:00"}},
		"elapsed in a skipped hour": {"*/30 2 * * *", "America/New_York", "2026-03-08T00:00:00Z",
			[]string{"2026-03-09T02:00:00-04:00"}},
		"hourly through an overlap": {"@hourly", "Europe/London", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T01:00:00+01:00", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, slots(t, c.expr, c.zone, c.after, len(c.want)))
		})
	}
}

func TestEveryIsAnchored(t *testing.T) {
	s, err := Parse("@every 7m", "Europe/Berlin")
	require.NoError(t, err)
	require.Equal(t, 7*time.Minute, s.Every())
	anchor := time.Date(2026, 1, 1, 0, 0, 30, 5e8, time.UTC)
	s = s.Anchored(anchor)
	first := time.Date(2026, 1, 1, 0, 7, 30, 0, time.UTC)
	require.Equal(t, first, s.Next(anchor))
	require.Equal(t, first.Add(7*time.Minute), s.Next(first))
	require.Equal(t, first, s.Next(first.Add(-time.Nanosecond)))
	require.Equal(t, first.Add(-7*time.Minute), s.Next(first.Add(-14*time.Minute)), "before the anchor as well")
	require.Equal(t, first.Add(-14*time.Minute), s.Next(first.Add(-14*time.Minute-time.Nanosecond)))
	far := time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC)
	require.WithinRange(t, s.Next(far), far.Add(1), far.Add(7*time.Minute))
}

func TestFieldSchedulesHaveNoInterval(t *testing.T) {
	s, err := Parse("*/5 * * * *", "")
	require.NoError(t, err)
	require.Zero(t, s.Every())
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	require.Equal(t, s.Next(at), s.Anchored(at.Add(time.Second)).Next(at))
	require.True(t, Schedule{}.Next(at).IsZero())
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ expr, zone, field string }{
		{"TZ=0", "", "cron"}, {"TZ=", "", "cron"}, {"CRON_TZ=", "", "cron"}, {"TZ=TZ=TZ=", "", "cron"},
		{"TZ=UTC 0 0 * * *", "", "cron"}, {"CRON_TZ=Europe/Berlin 0 0 * * *", "", "cron"},
		{"", "", "cron"}, {" ", "", "cron"}, {"*/0 * * * *", "", "cron"}, {"60 * * * *", "", "cron"}, {"* 24 * * *", "", "cron"},
		{"* * 0 * *", "", "cron"}, {"* * 32 * *", "", "cron"}, {"* * * 0 *", "", "cron"}, {"* * * 13 *", "", "cron"},
		{"* * * * 7", "", "cron"}, {"5-1 * * * *", "", "cron"}, {"1-0 * * * *", "", "cron"}, {"*-5 * * * *", "", "cron"},
		{"?-5 * * * *", "", "cron"}, {"1,,2 * * * *", "", "cron"}, {", * * * *", "", "cron"}, {"1, * * * *", "", "cron"},
		{"*/90 * * * *", "", "cron"}, {"* */24 * * *", "", "cron"}, {"*/99999999999999999999 * * * *", "", "cron"},
		{"-1 * * * *", "", "cron"}, {"+1 * * * *", "", "cron"}, {"1/2/3 * * * *", "", "cron"}, {"1-2-3 * * * *", "", "cron"},
		{"* * * *", "", "cron"}, {"* * * * * * *", "", "cron"}, {"* * * foo *", "", "cron"}, {"mon * * * *", "", "cron"},
		{"0 0 30 2 *", "", "cron"}, {"0 0 31 4,6,9,11 *", "", "cron"}, {"* * * * L", "", "cron"}, {"* * 15W * *", "", "cron"},
		{"@", "", "cron"}, {"@reboot", "", "cron"}, {"@Daily", "", "cron"}, {"@daily x", "", "cron"},
		{"@every", "", "cron"}, {"@every ", "", "cron"}, {"@every 0s", "", "cron"}, {"@every -1h", "", "cron"},
		{"@every 1ns", "", "cron"}, {"@every 1500ms", "", "cron"}, {"@every 60", "", "cron"}, {"@every 9000h", "", "cron"},
		{"@every 1e9h", "", "cron"}, {"@everyday", "", "cron"},
		{strings.Repeat(",", 1<<20), "", "cron"}, {strings.Repeat("1,", 1<<19) + "1 * * * *", "", "cron"},
		{"* * * * *\x00", "", "cron"}, {"* * * * \u0661", "", "cron"},
		{"* * * * *", "Mars/Olympus", "zone"}, {"* * * * *", "Local", "zone"}, {"* * * * *", "../../etc/passwd", "zone"},
		{"* * * * *", "/etc/localtime", "zone"}, {"* * * * *", "Europe", "zone"}, {"* * * * *", "Europe/Berlin ", "zone"},
		{"* * * * *", strings.Repeat("x", 1000), "zone"}, {"* * * * *", "+05:30", "zone"},
	} {
		name := c.expr
		if len(name) > 30 {
			name = name[:30]
		}
		t.Run(name+" "+c.zone, func(t *testing.T) {
			s, err := Parse(c.expr, c.zone)
			var refused *task.FieldError
			require.True(t, errors.As(err, &refused), "accepted, or refused by %v", err)
			require.Equal(t, c.field, refused.Field)
			require.NotEmpty(t, refused.Allowed)
			require.Less(t, len(err.Error()), 500)
			require.Equal(t, Schedule{}, s)
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"* * * * *", "*/5 0-23/2 1,15 jan-jun mon", "0 30 2 * * *", "@every 90s", "@daily", "TZ=0", "TZ=", "CRON_TZ=UTC * * * * *",
		"*/0", "60 * * * *", "1-0 * * * *", "? ? ? ? ?", "0 0 29 2 *", "@", ",", "59/59 * * * *",
	} {
		f.Add(seed, "America/New_York", int64(1772953200))
	}
	f.Add("30 2 * * *", "Australia/Lord_Howe", int64(0))
	f.Add("0 0 * * *", "../../etc/passwd", int64(-1))
	f.Fuzz(func(t *testing.T, expr, zone string, at int64) {
		s, err := Parse(expr, zone)
		if err != nil {
			var refused *task.FieldError
			require.True(t, errors.As(err, &refused))
			return
		}
		after := time.Unix(at%(1<<33), 0) // the years 1697 to 2242
		next := s.Next(after)
		if next.IsZero() {
			return
		}
		require.True(t, next.After(after))
		require.Zero(t, next.Nanosecond())
		// No slot lies between: asked from just before it, it is the next one again.
		require.Equal(t, next, s.Next(next.Add(-time.Nanosecond)))
	})
}
