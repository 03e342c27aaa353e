package mongostore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

func testClock() (*clock, *bytes.Buffer) {
	var log bytes.Buffer
	return newClock(nil, slog.New(slog.NewTextHandler(&log, nil))), &log
}

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func TestClockFollowsTheMonotonicClock(t *testing.T) {
	c, _ := testClock()
	c.observe(greeting{server: noon, mono: 0, bound: 2 * time.Millisecond})
	for _, elapsed := range []time.Duration{0, time.Second, 10 * time.Second} {
		now, bound := c.at(elapsed)
		require.Equal(t, noon.Add(elapsed), now)
		require.Equal(t, 2*time.Millisecond+elapsed/5000, bound)
	}
}

func TestClockUnknown(t *testing.T) {
	c, _ := testClock()
	_, _, err := c.now()
	require.ErrorIs(t, err, task.ErrClock, "it has not answered yet")

	c.observe(greeting{server: noon, mono: c.mono(), bound: maxClockBound + time.Millisecond})
	_, _, err = c.now()
	require.ErrorIs(t, err, task.ErrClock, "the answer took too long")

	c.observe(greeting{server: noon, mono: c.mono(), bound: time.Millisecond})
	_, _, err = c.now()
	require.NoError(t, err)

	c.answered = c.mono() - maxClockAge - time.Second
	_, _, err = c.now()
	require.ErrorIs(t, err, task.ErrClock, "the last answer is old")
}

func TestClockKeepsTheBetterAnswer(t *testing.T) {
	c, log := testClock()
	c.observe(greeting{server: noon, mono: 0, bound: time.Millisecond})
	slow := greeting{server: noon.Add(10*time.Second + 40*time.Millisecond), mono: 10 * time.Second, bound: 80 * time.Millisecond}
	c.observe(slow)
	now, bound := c.at(10 * time.Second)
	require.Equal(t, noon.Add(10*time.Second), now, "a slow answer that agrees teaches nothing")
	require.Less(t, bound, 4*time.Millisecond)
	require.Equal(t, 10*time.Second, c.answered, "but it is an answer")

	better := greeting{server: noon.Add(20*time.Second + time.Millisecond), mono: 20 * time.Second, bound: time.Millisecond}
	c.observe(better)
	now, _ = c.at(20 * time.Second)
	require.Equal(t, better.server, now)

	apart := greeting{server: noon.Add(30*time.Second + 200*time.Millisecond), mono: 30 * time.Second, bound: 50 * time.Millisecond}
	c.observe(apart)
	now, _ = c.at(30 * time.Second)
	require.Equal(t, apart.server, now, "an answer that contradicts is newer and wins")
	require.Empty(t, log.String())
}

func TestClockTakesAStepAtOnce(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 1100 * time.Millisecond} {
		c, log := testClock()
		c.observe(greeting{server: noon, mono: 0, bound: time.Millisecond})
		c.observe(greeting{server: noon.Add(10*time.Second + step), mono: 10 * time.Second, bound: 100 * time.Millisecond})
		now, _ := c.at(10 * time.Second)
		require.Equal(t, noon.Add(10*time.Second+step), now)
		require.Contains(t, log.String(), "clock moved")
	}
}

// After an outage the first answer takes long, because the server has to be found: what it differs by proves nothing.
func TestClockIsNotMovedByAVagueAnswer(t *testing.T) {
	c, log := testClock()
	c.observe(greeting{server: noon, mono: 0, bound: time.Millisecond})
	for _, by := range []time.Duration{1370 * time.Millisecond, -1370 * time.Millisecond} {
		c.observe(greeting{server: noon.Add(10*time.Second + by), mono: 10 * time.Second, bound: 1372 * time.Millisecond})
		now, bound := c.at(10 * time.Second)
		require.Equal(t, noon.Add(10*time.Second), now)
		require.Less(t, bound, 10*time.Millisecond)
	}
	require.Empty(t, log.String())
	c.observe(greeting{server: noon.Add(15 * time.Second), mono: 10 * time.Second, bound: 1372 * time.Millisecond})
	require.Contains(t, log.String(), "clock moved", "five seconds are no matter of how long the answer took")
}

// An answer that is too vague to go by is asked for again soon, also when it was the first of all.
func TestClockAsksAgainAfterAVagueAnswer(t *testing.T) {
	for _, known := range []bool{false, true} {
		c, _ := testClock()
		c.every, c.retry = time.Hour, time.Millisecond
		vague := greeting{server: noon, mono: c.mono(), bound: 2 * time.Second}
		if known {
			c.observe(vague)
		}
		answers := []greeting{vague, vague, {server: noon, mono: c.mono(), bound: time.Millisecond}}
		c.ask = func(context.Context) (greeting, error) {
			next := answers[0]
			answers = answers[min(1, len(answers)-1):]
			return next, nil
		}
		if !known {
			c.every = time.Millisecond // the first question of all
		}
		c.start()
		stacktest.Eventually(t, 5*time.Second, "the time is known", func() bool {
			_, _, err := c.now()
			return err == nil
		})
		c.stop()
	}
}

// A question that fails is asked again soon, and stopping ends the refresh.
func TestClockRefreshes(t *testing.T) {
	asked := make(chan struct{}, 8)
	failed := false
	c := newClock(nil, slog.New(slog.DiscardHandler))
	c.every, c.retry = 20*time.Millisecond, time.Millisecond
	c.ask = func(context.Context) (greeting, error) {
		asked <- struct{}{}
		if !failed {
			failed = true
			return greeting{}, errors.New("down")
		}
		return greeting{server: noon, mono: c.mono(), bound: time.Millisecond}, nil
	}
	c.start()
	for range 3 {
		select {
		case <-asked:
		case <-time.After(5 * time.Second):
			t.Fatal("not asked")
		}
	}
	c.stop()
	_, _, err := c.now()
	require.NoError(t, err)
}

func TestServerTime(t *testing.T) {
	s := openStore(t)
	now, bound, err := s.Now()
	require.NoError(t, err)
	require.Less(t, bound, maxClockBound)
	asked, primary, err := s.ServerTime(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, primary)
	require.WithinDuration(t, now, asked, bound+time.Second)
	require.NoError(t, s.Ping(t.Context()))

	// What the server itself writes lies within the bound.
	before, boundBefore, err := s.Now()
	require.NoError(t, err)
	started := claimTasks(t, s, insertTasks(t, s, 1)...)[0].StartedAt
	after, boundAfter, err := s.Now()
	require.NoError(t, err)
	require.False(t, started.Before(before.Add(-boundBefore-time.Millisecond)))
	require.False(t, started.After(after.Add(boundAfter+time.Millisecond)))
}
