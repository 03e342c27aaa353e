package schedule

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/cronexpr"
)

func TestNewestSlotIsWhatCountingOneByOneGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cron := rapid.SampledFrom([]string{
			"* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "0 0 1 * *", "*/7 * * * * *", "15 30 1-3 * * mon", "@every 7s",
			"@every 90m", "@every 200h", "0 0 29 2 *",
		}).Draw(t, "cron")
		zone := rapid.SampledFrom([]string{"", "Europe/London", "Australia/Lord_Howe", "America/New_York"}).Draw(t, "zone")
		expr, err := cronexpr.Parse(cron, zone)
		require.NoError(t, err)
		start := time.Unix(rapid.Int64Range(1_500_000_000, 1_900_000_000).Draw(t, "start"), 0)
		expr = expr.Anchored(start.Add(-time.Duration(rapid.IntRange(0, 1000).Draw(t, "anchor")) * time.Second))

		slot := expr.Next(start)
		now := slot.Add(time.Duration(rapid.Int64Range(0, int64(72*time.Hour)).Draw(t, "late")))
		want, skipped := slot, 0
		for next := expr.Next(want); !next.After(now); next = expr.Next(want) {
			want = next
			skipped++
		}
		last, missed := newest(expr, slot, now)
		require.Equal(t, want, last)
		require.Equal(t, skipped > 0, missed)
	})
}

func TestNewestSlotAfterALongDowntimeIsFoundAtOnce(t *testing.T) {
	for _, cron := range []string{"* * * * * *", "@every 1s", "0 0 29 2 *", "0 3 * * mon"} {
		expr, err := cronexpr.Parse(cron, "")
		require.NoError(t, err)
		slot := expr.Next(time.Date(2011, 1, 1, 0, 0, 0, 0, time.UTC))
		began := time.Now()
		last, missed := newest(expr, slot, time.Date(2026, 6, 1, 12, 0, 0, 500, time.UTC))
		require.True(t, missed)
		require.Greater(t, expr.Next(last), time.Date(2026, 6, 1, 12, 0, 0, 500, time.UTC))
		require.Less(t, time.Since(began), time.Second, cron)
	}
}
