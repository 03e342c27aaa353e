package reap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	testLease = 30 * time.Second
	testBeat  = 5 * time.Second
)

// tape feeds a watch with readings: own is the monotonic clock, server the database's.
type tape struct {
	*watch
	own, server time.Time
	primary     string
}

func newTape() *tape {
	return &tape{
		watch: newWatch(testLease, testBeat), own: time.Unix(1_000, 0), server: time.Unix(2_000_000_000, 0), primary: "a:27017",
	}
}

// pass lets both clocks run.
func (tp *tape) pass(d time.Duration) { tp.own, tp.server = tp.own.Add(d), tp.server.Add(d) }

// read takes a reading that was answered at once.
func (tp *tape) read() verdict {
	return tp.observe(reading{server: tp.server, primary: tp.primary, sent: tp.own, received: tp.own})
}

// seconds reads once a second.
func (tp *tape) seconds(n int) {
	for range n {
		tp.pass(time.Second)
		tp.read()
	}
}

func (tp *tape) trusted() bool {
	_, ok := tp.now(tp.own)
	return ok
}

func TestWatchPausesForOneLease(t *testing.T) {
	for name, c := range map[string]struct {
		disturb func(*tape)
		why     string
	}{
		"silence over one beat": {func(tp *tape) { tp.pass(testBeat + time.Millisecond); tp.read() }, "no answer"},
		"another primary":       {func(tp *tape) { tp.primary = "b:27017"; tp.seconds(1) }, "another primary"},
		"clock forward":         {func(tp *tape) { tp.server = tp.server.Add(1100 * time.Millisecond); tp.seconds(1) }, "clock stepped"},
		"clock forward an hour": {func(tp *tape) { tp.server = tp.server.Add(time.Hour); tp.seconds(1) }, "clock stepped"},
		"clock back":            {func(tp *tape) { tp.server = tp.server.Add(-1100 * time.Millisecond); tp.seconds(1) }, "clock stepped"},
	} {
		t.Run(name, func(t *testing.T) {
			tp := newTape()
			tp.read()
			tp.seconds(60)
			require.True(t, tp.trusted())
			require.False(t, tp.takeOver(""), "it has watched for over a lease itself")

			c.disturb(tp)
			require.Equal(t, c.why, tp.status(tp.own))
			tp.seconds(29)
			require.False(t, tp.trusted(), "one second short of a lease")
			require.Empty(t, tp.leave(tp.own), "a pausing leader vouches for nothing")
			tp.seconds(1)
			require.True(t, tp.trusted())
			require.Empty(t, tp.status(tp.own))
		})
	}
}

func TestDisturbancesDuringAPauseProlongIt(t *testing.T) {
	tp := newTape()
	tp.read()
	tp.seconds(60)
	tp.primary = "b:27017"
	tp.pass(time.Second)
	require.Equal(t, "another primary", tp.read().paused)
	tp.seconds(20)
	tp.server = tp.server.Add(-time.Hour)
	tp.pass(time.Second)
	v := tp.read()
	require.Empty(t, v.paused, "it pauses already")
	require.Equal(t, -time.Hour, v.step)
	tp.seconds(29)
	require.False(t, tp.trusted())
	tp.seconds(1)
	require.True(t, tp.trusted())
}

func TestWatchBearsWhatIsNoDisturbance(t *testing.T) {
	tp := newTape()
	tp.read()
	tp.seconds(31)
	for range 100 { // up to a second of drift between two readings
		tp.server = tp.server.Add(900 * time.Millisecond)
		tp.seconds(1)
		require.True(t, tp.trusted())
	}
	tp.pass(testBeat)
	require.True(t, tp.trusted(), "silence of one beat")
	tp.read()
	require.True(t, tp.trusted())

	// An answer that took four seconds tells little about when the server looked at its clock.
	sent := tp.own
	tp.pass(4 * time.Second)
	require.Zero(t, tp.observe(reading{server: tp.server.Add(-3 * time.Second), primary: tp.primary, sent: sent, received: tp.own}))
	tp.pass(time.Second)
	require.Zero(t, tp.read())
	require.True(t, tp.trusted())
}

func TestWatchTrustsNothingWithoutAnAnswer(t *testing.T) {
	tp := newTape()
	require.False(t, tp.trusted(), "before the first answer")
	tp.read()
	tp.seconds(31)
	tp.pass(testBeat + time.Millisecond)
	require.False(t, tp.trusted(), "the last answer is older than a beat, whatever comes next")
	require.Equal(t, "no answer", tp.status(tp.own))
}

func TestNewLeaderPausesUnlessTheOldOneSawTheDatabaseJustNow(t *testing.T) {
	noted := func(ago time.Duration, primary string) func(*tape) string {
		return func(tp *tape) string {
			old := newTape()
			old.primary = primary
			old.own, old.server = tp.own.Add(-ago), tp.server.Add(-ago)
			old.read()
			return old.leave(old.own)
		}
	}
	for name, c := range map[string]struct {
		note   func(*tape) string
		pauses bool
	}{
		"no note":            {func(*tape) string { return "" }, true},
		"no sense":           {func(*tape) string { return "{" }, true},
		"fresh":              {noted(2*time.Second, "a:27017"), false},
		"15 s old":           {noted(15*time.Second, "a:27017"), false},
		"over 15 s old":      {noted(15*time.Second+time.Millisecond, "a:27017"), true},
		"of another primary": {noted(2*time.Second, "b:27017"), true},
		"from the future":    {noted(-time.Minute, "a:27017"), true},
	} {
		t.Run(name, func(t *testing.T) {
			tp := newTape()
			tp.read()
			require.Equal(t, c.pauses, tp.takeOver(c.note(tp)))
			require.Equal(t, !c.pauses, tp.trusted())
			if c.pauses {
				require.Equal(t, "new leader", tp.status(tp.own))
				tp.seconds(30)
				require.True(t, tp.trusted())
			}
		})
	}
}

func TestWatchNeverRunsAheadOfTheServer(t *testing.T) {
	for _, guess := range []time.Duration{0, 300 * time.Millisecond, 900 * time.Millisecond} {
		tp := newTape()
		sent := tp.own
		tp.pass(900 * time.Millisecond)
		// The server looked at its clock somewhere within these 900 ms; what is told may be ahead of it by as much.
		tp.observe(reading{server: tp.server.Add(guess), primary: tp.primary, sent: sent, received: tp.own})
		tp.pass(2 * time.Second)
		now, ok := tp.now(tp.own)
		require.True(t, ok)
		require.False(t, now.After(tp.server))
	}
}
