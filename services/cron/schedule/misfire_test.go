package schedule

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/cronexpr"
	"github.com/ax-scheduler/ax/internal/task"
)

// addMisfire stores a schedule with a policy for missed slots.
func (l *ledger) addMisfire(t *testing.T, name, cron, policy string, catchUp time.Duration, most int) {
	t.Helper()
	l.add(t, name, cron)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.schedules[name]
	s.Misfire, s.CatchUp, s.CatchUpMax = policy, catchUp, most
	l.schedules[name] = s
}

func TestScenario28MissedSlotsFollowThePolicyOfTheirSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.addMisfire(t, "skip", "@every 7m", task.MisfireSkip, 0, 0)
		l.addMisfire(t, "soon", "@every 10s", task.MisfireSkip, 0, 0)
		l.addMisfire(t, "all", "@every 1m", task.MisfireAll, 24*time.Hour, 1000)
		l.addMisfire(t, "window", "@every 1m", task.MisfireAll, 30*time.Minute, 1000)
		l.addMisfire(t, "number", "@every 1s", task.MisfireAll, 24*time.Hour, 700)
		l.addMisfire(t, "stale", "@every 1h", task.MisfireAll, time.Minute, 10)
		skipFrom := l.schedule("skip").NextAt
		time.Sleep(2*time.Hour + 5*time.Minute + 3*time.Second)
		before := l.now()
		stop := lead(t, l)
		time.Sleep(500 * time.Millisecond)
		require.Empty(t, l.slots(t, "skip"), "the newest slot is over a minute late")
		require.Empty(t, l.slots(t, "stale"), "the newest slot is older than the window")
		require.Len(t, l.slots(t, "soon"), 1, "one slot is only just late")
		all := l.slots(t, "all")
		require.Len(t, all, 125)
		requireEach(t, all, time.Minute)
		window := l.slots(t, "window")
		require.Len(t, window, 30)
		require.False(t, window[0].Before(before.Add(-30*time.Minute)))
		number := l.slots(t, "number")
		require.GreaterOrEqual(t, len(number), 700)
		require.LessOrEqual(t, len(number), 701, "more than a page holds, in parts, and one that fell due meanwhile")
		requireEach(t, number, time.Second)

		time.Sleep(7 * time.Minute)
		stop()
		skip := l.slots(t, "skip")
		require.Len(t, skip, 1, "later slots fire as always")
		require.Zero(t, skip[0].Sub(skipFrom)%(7*time.Minute))
		require.Len(t, l.slots(t, "all"), 132)
	})
}

func TestMissedSlotsThatFireAreWhatCountingOneByOneGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cron := rapid.SampledFrom([]string{"* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "15 30 1-3 * * mon", "@every 7s", "@every 90m"}).Draw(t, "cron")
		expr, err := cronexpr.Parse(cron, rapid.SampledFrom([]string{"", "Europe/London", "Australia/Lord_Howe"}).Draw(t, "zone"))
		require.NoError(t, err)
		start := time.Unix(rapid.Int64Range(1_500_000_000, 1_900_000_000).Draw(t, "start"), 0)
		s := task.Schedule{NextAt: expr.Next(start), Misfire: task.MisfireAll,
			CatchUp:    time.Duration(rapid.Int64Range(1, int64(24*time.Hour/time.Second)).Draw(t, "window")) * time.Second,
			CatchUpMax: rapid.IntRange(1, 50).Draw(t, "most")}
		now := s.NextAt.Add(time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "late")))

		var want []time.Time
		passed, newest := 0, s.NextAt
		for slot := s.NextAt; !slot.After(now); slot = expr.Next(slot) {
			newest = slot
			if slot.Before(now.Add(-s.CatchUp)) {
				passed++
				continue
			}
			want = append(want, slot)
		}
		if n := len(want) - s.CatchUpMax; n > 0 {
			want, passed = want[n:], passed+n
		}
		slots, place, missed := chosen(expr, s, now, 1000)
		require.Equal(t, len(want), len(slots))
		for i := range want {
			require.Equal(t, want[i], slots[i])
		}
		require.Equal(t, newest, place)
		require.Equal(t, passed > 0, missed)
	})
}
