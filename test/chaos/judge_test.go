package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// sound is what a run without a fault leaves of one task that succeeded at its second attempt, and of one that failed for good.
func sound() evidence {
	good := &task.Task{ID: "good", State: task.Success, Claim: "c2", Seq: 5, OnExhausted: task.DeadLetter, History: []task.Entry{
		{Seq: 1, To: task.Pending, Reason: task.ReasonSubmitted},
		{Seq: 2, From: task.Pending, To: task.Running, Reason: task.ReasonClaimed, Claim: "c1"},
		{Seq: 3, From: task.Running, To: task.Pending, Reason: task.ReasonLeaseExpired, Claim: "c1"},
		{Seq: 4, From: task.Pending, To: task.Running, Reason: task.ReasonClaimed, Claim: "c2"},
		{Seq: 5, From: task.Running, To: task.Success, Reason: task.ReasonSucceeded, Claim: "c2"},
	}}
	bad := &task.Task{ID: "bad", State: task.Failed, Claim: "c3", Seq: 3, OnExhausted: task.DeadLetter, History: []task.Entry{
		{Seq: 1, To: task.Pending, Reason: task.ReasonSubmitted},
		{Seq: 2, From: task.Pending, To: task.Running, Reason: task.ReasonClaimed, Claim: "c3"},
		{Seq: 3, From: task.Running, To: task.Failed, Reason: task.ReasonExhausted, Claim: "c3"},
	}}
	run := func(worker, execution, task string, from, to int64, result string) ledger.Execution {
		return ledger.Execution{Record: ledger.Record{Worker: worker, Execution: execution, Task: task, At: from}, End: to, Result: result}
	}
	e := evidence{
		submitted: []submission{{id: "good", door: stored, accepted: 10, ends: []task.State{task.Success}}, {id: "bad", door: queued, accepted: 10, ends: []task.State{task.Failed}}},
		tasks:     map[string]*task.Task{"good": good, "bad": bad},
		runs:      []ledger.Execution{run("w1", "c1:good", "good", 20, 40, ledger.Stale), run("w2", "c2:good", "good", 50, 60, "ok"), run("w2", "c3:bad", "bad", 30, 70, "error")},
		dead:      map[string]bool{"bad": true},
	}
	for _, t := range []*task.Task{good, bad} {
		for _, h := range t.History {
			e.events = append(e.events, events.Event{ID: t.ID, Seq: h.Seq, State: string(h.To)})
		}
	}
	return e
}

func TestASoundRunPassesEveryJudge(t *testing.T) {
	require.Empty(t, judge(sound()))
}

// Each judge is shown the damage it is there for, and no other judge need notice it.
func TestEachJudgeFindsItsDamage(t *testing.T) {
	for _, tc := range []struct {
		name, kind, text string
		damage           func(*evidence)
	}{
		{"a stored task is gone", "lost", "accepted (stored)", func(e *evidence) { delete(e.tasks, "good"); e.wipes = []int64{100} }},
		{"a queued task is gone and NATS kept its store", "lost", "accepted (queued)", func(e *evidence) { delete(e.tasks, "bad") }},
		{"a queued task is gone that was accepted after the wipe", "lost", "accepted (queued)", func(e *evidence) { delete(e.tasks, "bad"); e.wipes = []int64{9} }},
		{"a queued task is gone that had been accepted long before the wipe", "lost", "accepted (queued)", func(e *evidence) { delete(e.tasks, "bad"); e.wipes = []int64{10 + queuedFor} }},
		{"a task never ended", "stuck", "still pending", func(e *evidence) {
			g := e.tasks["good"]
			g.State, g.Seq, g.History = task.Pending, 3, g.History[:3]
		}},
		{"a task failed that must not", "wrong end", "ended as failed", func(e *evidence) { e.submitted[1].ends = []task.State{task.Success} }},
		{"a task ran twice at once", "overlap", "c1:good on w1 until 51", func(e *evidence) { e.runs[0].End = 51 }},
		{"a move that is none", "history", "no legal move", func(e *evidence) { e.tasks["good"].History[2].Reason = task.ReasonSubmitted }},
		{"a change without a record", "history", "follows seq 2", func(e *evidence) {
			g := e.tasks["good"]
			g.History = slices.Delete(g.History, 2, 3)
		}},
		{"the newest change has no record", "history", "with seq 6", func(e *evidence) { e.tasks["good"].Seq = 6 }},
		{"an ended task has an owner", "history", "still has an owner", func(e *evidence) { e.tasks["good"].WorkerID = "w" }},
		{"an ended task has a lease", "history", "still has an owner", func(e *evidence) { e.tasks["good"].LeaseUntil = time.Now() }},
		{"success without work", "unearned", "did not succeed", func(e *evidence) { e.runs[1].Result = "error" }},
		{"success of another attempt", "unearned", "did not succeed", func(e *evidence) { e.runs[1].Result, e.runs[0].Result = ledger.Stale, "ok" }},
		{"work without a claim", "unearned", "no claim of it", func(e *evidence) { e.runs[0].Execution = "c9:good" }},
		{"an event is missing", "missing event", "no event of seq 5", func(e *evidence) { e.events = slices.Delete(e.events, 4, 5) }},
		{"an event of the first change is missing after a wipe", "missing event", "no event of seq 1", func(e *evidence) { e.events = e.events[1:]; e.wipes = []int64{100} }},
		{"an event says something else", "missing event", "says failed", func(e *evidence) { e.events[4].State = "failed" }},
		{"events overtake", "event order", "seq 5 follows that of seq 3", func(e *evidence) { e.events[3], e.events[4] = e.events[4], e.events[3] }},
		{"a failed task waits for nobody", "dead letter", "is failed", func(e *evidence) { e.dead = nil }},
		{"a dead letter of a task that succeeded", "dead letter", "is success", func(e *evidence) { e.dead["good"] = true }},
		{"a process gave up", "exit", "reaper/0", func(e *evidence) { e.exited = []string{"reaper/0 ended by itself"} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := sound()
			tc.damage(&e)
			require.Condition(t, func() bool {
				return slices.ContainsFunc(judges[tc.kind](e), func(v violation) bool { return v.task != "" && strings.Contains(v.text, tc.text) })
			}, "%v", judges[tc.kind](e))
			require.True(t, slices.ContainsFunc(judge(e), func(v violation) bool { return v.kind == tc.kind }), "the verdict of the whole names it")
		})
	}
}

// What was only queued may go with the store of NATS, and events may come again in any order after it, as long as all come.
func TestAWipeExcusesWhatItMust(t *testing.T) {
	e := sound()
	delete(e.tasks, "bad")
	e.runs, e.events, e.wipes = e.runs[:2], e.events[:5], []int64{10}
	slices.Reverse(e.events)
	require.Empty(t, judge(e))
}

func TestARepeatedEventIsNoFault(t *testing.T) {
	e := sound()
	e.events = append(e.events, e.events[:3]...)
	require.Empty(t, judge(e))
}

func TestRecoveryIsFromTheEndOfABrokenExecutionToTheNextStart(t *testing.T) {
	took, broken := recoveries(sound().runs)
	require.Equal(t, 1, broken)
	require.Equal(t, []time.Duration{10}, took)
	require.Equal(t, time.Duration(0), percentile(nil, 95))
	require.Equal(t, 96*time.Second, percentile(seconds(100), 95))
}

func seconds(n int) (list []time.Duration) {
	for i := range n {
		list = append(list, time.Duration(i+1)*time.Second)
	}
	return list
}
