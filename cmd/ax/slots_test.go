package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/pkg/events"
)

func TestScheduleNext(t *testing.T) {
	next := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"schedule", "next"}, args...), strings.NewReader(""), &out, &errs)
		return code, out.String(), errs.String()
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"30 2 * * *", "--zone", "Europe/Berlin", "--from", "2026-03-28T00:00:00Z", "--count", "3"}, // over the night without 2:30
			[]string{"2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{[]string{"@every 90s", "--from", "2026-01-01T00:00:00+01:00", "--count", "2"}, []string{"2025-12-31T23:01:30Z", "2025-12-31T23:03:00Z"}},
		{[]string{"0 0 1 1 *", "--from", "2026-01-01T00:00:00Z", "--count", "1"}, []string{"2027-01-01T00:00:00Z"}},
	} {
		code, out, errs := next(c.args...)
		require.Zero(t, code, errs)
		require.Equal(t, strings.Join(c.want, "\n")+"\n", out)
	}
	code, out, errs := next("0 0 * * *", "--json", "--from", "2026-01-01T00:00:00Z", "--count", "1")
	require.Zero(t, code, errs)
	require.JSONEq(t, `{"at":"2026-01-02T00:00:00Z"}`, out)
	code, out, _ = next("* * * * *")
	require.Zero(t, code)
	require.Equal(t, 10, strings.Count(out, "\n"))

	for bad, part := range map[string]string{
		"61 * * * *":                     "cron",
		"":                               "cron",
		"0 0 30 2 *":                     "never fire",
		"* * * * *|--zone|Mars/Phobos":   "zone",
		"* * * * *|--from|tomorrow":      "--from",
		"* * * * *|--count|0":            "--count",
		"* * * * *|--count|10001":        "--count",
		"* * * * *|--from|2026-01-01":    "--from",
		"@every 90|--zone|Europe/Berlin": "@every",
	} {
		code, out, errs := next(strings.Split(bad, "|")...)
		require.Equal(t, exitInvalid, code, bad)
		require.Empty(t, out)
		require.Contains(t, errs, part, bad)
	}
}

func TestPreviewGoesOnWhereFiringDoes(t *testing.T) {
	var out bytes.Buffer
	s := &settings{}
	require.NoError(t, preview(&out, s, events.Schedule{Name: "poll", Cron: "@every 90s", NextAt: "2026-01-01T00:00:10Z"}, 2))
	require.Equal(t, "2026-01-01T00:00:10Z\n2026-01-01T00:01:40Z\n", out.String())
	out.Reset()
	require.NoError(t, preview(&out, s, events.Schedule{Name: "n", Cron: "30 2 * * *", Zone: "Europe/Berlin", NextAt: "2026-03-29T01:00:00Z"}, 2))
	require.Equal(t, "2026-03-29T03:00:00+02:00\n2026-03-30T02:30:00+02:00\n", out.String())
	require.ErrorContains(t, preview(&out, s, events.Schedule{Name: "n", Cron: "x", Broken: "it is odd", NextAt: "2026-03-29T01:00:00Z"}, 2), "it is odd")
	require.ErrorContains(t, preview(&out, s, events.Schedule{Name: "n", Cron: "* * * * *"}, 2), "no next slot")
}
