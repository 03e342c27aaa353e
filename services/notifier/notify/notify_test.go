package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestEventSaysAllThatTheChangeSays(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 250_000_000, time.UTC)
	msg, err := eventOf(task.Observed{
		ID: "a:1", Error: &task.Error{Message: "timed <out>", Code: "smtp", Cause: task.ReasonTimeout, Stack: "secret"},
		Change: task.Change{
			Seq: 7, Type: "email", Channel: "stable", Priority: 2, From: task.Running, To: task.Pending, Reason: task.ReasonRetry,
			Attempt: 2, Claim: "c", At: at, ScheduledAt: at.Add(time.Second), By: "worker/w1",
			Echo: `{"bizKey":"order|7","labels":{"team":"a|b"},"workflowId":"w"}`,
		},
	})
	require.NoError(t, err)
	require.Equal(t, "ax.event.email.pending", msg.Subject)
	require.Equal(t, "a:1:7", msg.ID)
	require.JSONEq(t, `{"id":"a:1","type":"email","seq":7,"from":"running","state":"pending","reason":"retry","attempt":2,
		"executionId":"c:a:1","at":"2026-03-01T12:00:00.250Z","by":"worker/w1","scheduledAt":"2026-03-01T12:00:01.250Z",
		"error":{"message":"timed <out>","code":"smtp","cause":"timeout"},
		"bizKey":"order|7","labels":{"team":"a|b"},"workflowId":"w"}`, string(msg.Data))
	meta := events.MetaOf(msg.Header)
	require.Equal(t, events.Meta{ID: "a:1:7", Source: "/ax/notifier", Type: events.TypeTaskChanged, Subject: "a:1", Time: at}, meta)
}

func TestResultsTravelUpToTheirLimit(t *testing.T) {
	for size, travels := range map[int]bool{10: true, events.MaxEventResult: true, events.MaxEventResult + 1: false, task.MaxResult: false} {
		result := json.RawMessage(`"` + strings.Repeat("x", size-2) + `"`)
		msg, err := eventOf(task.Observed{ID: "a", Result: result, Change: task.Change{Seq: 3, Type: "email", To: task.Success}})
		require.NoError(t, err)
		e, err := events.DecodeEvent(msg.Data)
		require.NoError(t, err)
		if travels {
			require.Equal(t, result, e.Result)
			require.Zero(t, e.ResultSize)
		} else {
			require.Empty(t, e.Result)
			require.Equal(t, size, e.ResultSize)
		}
	}
}

func TestCancelRequestIsAnEventOfTheRunningTask(t *testing.T) {
	msg, err := eventOf(task.Observed{ID: "a", Change: task.Change{
		Seq: 3, Type: "email", From: task.Running, To: task.Running, Reason: task.ReasonCancelled, Claim: "c", Attempt: 1,
	}})
	require.NoError(t, err)
	require.Equal(t, "ax.event.email.running", msg.Subject)
	e, err := events.DecodeEvent(msg.Data)
	require.NoError(t, err)
	require.Equal(t, "running", e.State)
	require.Equal(t, "cancelled", e.Reason)
}

func TestTailPublishesEverythingInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n, stop := w.leader("creation 1", 1)
		synctest.Wait() // it follows the stream: what comes is published once
		for i := range 100 {
			w.live(fmt.Sprintf("t%d", i), i%5 > 0)
			time.Sleep(30 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		w.requireGapless()
		place, at := w.place()
		require.Equal(t, len(w.changes), place, "the place is stored soon after the last event")
		require.Len(t, w.dead, 20)
		require.Equal(t, 100.0, testutil.ToFloat64(n.metrics.events.WithLabelValues("success"))+testutil.ToFloat64(n.metrics.events.WithLabelValues("failed")))

		d := w.dead["t0"]
		require.Equal(t, task.ReasonExhausted, d.Reason)
		require.Len(t, d.Errors, 2, "each attempt's error is kept")
		require.Equal(t, "first", d.Errors[0].Error.Message)
		require.Equal(t, "second", d.Errors[1].Error.Message)

		time.Sleep(25 * time.Second)
		_, still := w.place()
		require.Equal(t, at, still)
		time.Sleep(10 * time.Second)
		_, later := w.place()
		require.Greater(t, later.Sub(at), 20*time.Second, "an idle place is stored every 30 s")
		require.NoError(t, stop())
	})
}

// TestCrashAnywhereLosesNothing ends a leader's life at each of its calls in turn; the next one goes on from what is stored.
// SaveCursor asserts that no place is ever stored before what it stands for was published and buried.
func TestCrashAnywhereLosesNothing(t *testing.T) {
	for call := 1; ; call++ {
		struck := false
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.fault = func(n int, _ string) error {
				if struck = struck || n == call; n == call {
					return errFault
				}
				return nil
			}
			n, stop := w.leader("creation 1", 1)
			for i := range 12 {
				w.live(fmt.Sprintf("t%d", i), i%3 > 0)
				time.Sleep(200 * time.Millisecond)
			}
			time.Sleep(3 * time.Second)
			if err := stop(); err != nil {
				require.ErrorIs(t, err, errFault)
			}
			w.set(func() { w.fault = nil })
			_, stopNext := w.leader(n.Note(), 2)
			time.Sleep(10 * time.Second)
			require.NoError(t, stopNext())
			w.requireGapless()
			require.Len(t, w.dead, 4)
		})
		if !struck || t.Failed() {
			require.Greater(t, call, 50, "the test has reached too few calls to mean anything")
			break
		}
	}
}

func TestEveryEndThatWantsADeadLetterHasOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.leader("creation 1", 1)
		ends := map[string]task.Reason{
			"exhausted": task.ReasonExhausted, "nonretryable": task.ReasonNonRetryable, "lost": task.ReasonWorkerLost,
			"rejected": task.ReasonRejectedResult,
		}
		for id, reason := range ends {
			for _, policy := range []string{task.DeadLetter, task.Ignore} {
				w.move(id+policy, task.Pending, task.ReasonSubmitted, func(t *task.Task) { t.OnExhausted = policy })
				w.move(id+policy, task.Running, task.ReasonClaimed)
				w.move(id+policy, task.Failed, reason, fails("end"))
			}
		}
		w.move("expired", task.Pending, task.ReasonSubmitted)
		w.move("expired", task.Failed, task.ReasonExpired)
		w.move("cancelled", task.Pending, task.ReasonSubmitted)
		w.move("cancelled", task.Cancelled, task.ReasonCancelled)
		time.Sleep(3 * time.Second)
		require.NoError(t, stop())
		for id, reason := range ends {
			require.Equal(t, reason, w.dead[id+task.DeadLetter].Reason, id)
		}
		require.Equal(t, task.ReasonExpired, w.dead["expired"].Reason)
		require.Len(t, w.dead, len(ends)+1)
	})
}

func TestLostHistoryIsRebuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n, stop := w.leader("creation 1", 1)
		w.live("before", true)
		w.move("live", task.Pending, task.ReasonSubmitted)
		time.Sleep(5 * time.Second)
		require.NoError(t, stop())

		for i := range 450 { // more than two pages, many in the same millisecond
			w.live(fmt.Sprintf("missed%d", i), i%50 > 0)
		}
		w.move("live", task.Running, task.ReasonClaimed)
		w.move("retried", task.Pending, task.ReasonSubmitted)
		for range 75 { // 151 changes: the history keeps 100
			w.move("retried", task.Running, task.ReasonClaimed)
			w.move("retried", task.Pending, task.ReasonSnoozed)
		}
		w.set(func() { w.base = len(w.changes) })
		time.Sleep(20 * time.Minute)

		n, stop = w.leader(n.Note(), 2)
		time.Sleep(5 * time.Second)
		w.live("after", true)
		time.Sleep(5 * time.Second)
		require.NoError(t, stop())
		w.requireGapless()
		require.Len(t, w.dead, 9)
		require.Equal(t, 1.0, testutil.ToFloat64(n.metrics.gaps))
		require.Equal(t, 1.0, testutil.ToFloat64(n.metrics.rebuilds.WithLabelValues("history lost")))

		var gap events.Event
		require.NoError(t, json.Unmarshal(w.all["retried:51:gap"], &gap))
		require.Equal(t, &events.Gap{FromSeq: 1, ToSeq: 51}, gap.Gap)
	})
}

func TestATaskThatEndsDuringARebuildLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.leader("creation 1", 1)
		w.move("a", task.Pending, task.ReasonSubmitted)
		time.Sleep(3 * time.Second)
		require.NoError(t, stop())
		w.move("a", task.Running, task.ReasonClaimed)
		w.set(func() {
			w.base = len(w.changes)
			ended := false
			w.fault = func(_ int, what string) error {
				if (what == "read live tasks" || what == "read just ended tasks") && !ended { // after the first of the two readings of a rebuild
					ended = true
					w.moveLocked("a", task.Success, task.ReasonSucceeded)
				}
				return nil
			}
		})
		_, stop = w.leader("creation 1", 2)
		time.Sleep(5 * time.Second)
		require.NoError(t, stop())
		w.requireGapless()
	})
}

func TestAChangeThatCannotBeWrittenKeepsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.move("bad", task.Pending, task.ReasonSubmitted, func(t *task.Task) { t.Echo = unreadable })
		n, stop := w.leader("", 1)
		time.Sleep(time.Second)
		w.live("good", true)
		time.Sleep(3 * time.Second)
		require.NoError(t, stop())
		require.Contains(t, w.all, "good:3")
		require.Equal(t, 1.0, testutil.ToFloat64(n.metrics.gaps))
	})
}

func TestHistoryLostUnderAnOpenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.leader("creation 1", 1)
		w.live("before", true)
		time.Sleep(3 * time.Second)
		w.set(func() { w.away = true })
		for i := range 100 {
			w.live(fmt.Sprintf("t%d", i), true)
		}
		time.Sleep(3 * time.Second)
		w.set(func() {
			require.LessOrEqual(t, w.reads, 1+3+2+readAhead+3, "what is read ahead while NATS is away is bounded")
			w.base, w.away = len(w.changes), false
		})
		time.Sleep(5 * time.Second)
		require.NoError(t, stop())
		w.requireGapless()
	})
}

func TestALostEventStreamIsFilledAgain(t *testing.T) {
	for name, running := range map[string]bool{"while leading": true, "while nobody led": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n, stop := w.leader("creation 1", 1)
				w.live("old", true)
				time.Sleep(2 * time.Hour)
				w.live("recent", false)
				w.move("live", task.Pending, task.ReasonSubmitted)
				time.Sleep(10 * time.Minute)
				w.requireGapless()
				if !running {
					require.NoError(t, stop())
				}
				w.wipe()
				w.live("later", true)
				if !running {
					n, stop = w.leader(n.Note(), 2)
				}
				time.Sleep(time.Minute)
				require.NoError(t, stop())
				require.Equal(t, "creation 2", n.Note())
				delete(w.tasks, "old") // ended over an hour before: not published again
				w.requireGapless()
				require.Equal(t, 1.0, testutil.ToFloat64(n.metrics.rebuilds.WithLabelValues("event stream is new")))
			})
		})
	}
}

func TestWithoutChangeStreamsSweepsFindEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.streams = false
		n, stop := w.leader("", 1)
		for i := range 50 {
			w.live(fmt.Sprintf("t%d", i), i%10 > 0)
			w.move(fmt.Sprintf("slow%d", i), task.Pending, task.ReasonSubmitted)
			time.Sleep(time.Second)
		}
		for i := range 50 {
			w.move(fmt.Sprintf("slow%d", i), task.Running, task.ReasonClaimed)
		}
		time.Sleep(15 * time.Second)
		w.requireGapless()
		require.Len(t, w.dead, 5)
		require.Equal(t, 1.0, testutil.ToFloat64(n.metrics.degraded))
		require.Zero(t, testutil.ToFloat64(n.metrics.gaps))

		calls := 0
		w.set(func() { calls = len(w.all) })
		before := testutil.ToFloat64(n.metrics.events.WithLabelValues("success"))
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Len(t, w.all, calls)
		require.Equal(t, before, testutil.ToFloat64(n.metrics.events.WithLabelValues("success")), "what was published is not published at each sweep")
	})
}

func TestAStreamThatStandsStillIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.leader("creation 1", 1)
		w.live("a", true)
		time.Sleep(5 * time.Minute) // idle, and its place moves on
		w.set(func() { w.silent = true })
		time.Sleep(50 * time.Second)
		w.set(func() { w.silent = false })
		time.Sleep(10 * time.Second)
		w.set(func() { w.silent = true })
		time.Sleep(70 * time.Second)
		require.ErrorIs(t, stop(), errSilent)
		w.requireGapless()
	})
}

func TestAFormerLeaderCannotMoveThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.leader("creation 1", 1)
		w.live("a", true)
		time.Sleep(3 * time.Second)
		w.set(func() { w.epoch = 2 }) // another has stored under its epoch
		before, _ := w.place()
		w.live("b", true)
		time.Sleep(3 * time.Second)
		require.ErrorIs(t, stop(), task.ErrNotLeader)
		after, _ := w.place()
		require.Equal(t, before, after)
	})
}

func TestPublishedRemembersABoundedNumber(t *testing.T) {
	p := newPublished(100)
	for i := range 1000 {
		p.mark(fmt.Sprint(i), int64(i))
		require.LessOrEqual(t, len(p.young)+len(p.old), 100)
	}
	require.EqualValues(t, 999, p.last("999"))
	require.EqualValues(t, 960, p.last("960"))
	require.Zero(t, p.last("1"))
}
