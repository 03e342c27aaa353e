package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// door is how a task was handed in, and with it how strong the promise is.
type door string

const (
	stored door = "stored" // accepted through ax.api: survives the loss of NATS
	queued door = "queued" // acknowledged by AX_SUBMIT: survives all but the loss of NATS's store
	fired  door = "fired"  // made by a schedule
)

// submission is a task that ax has accepted.
type submission struct {
	id       string
	door     door
	accepted int64 // by the ledger's clock
	ends     []task.State
}

// evidence is all that a run left behind.
type evidence struct {
	submitted []submission
	tasks     map[string]*task.Task // as the database has them, of those submitted
	runs      []ledger.Execution
	events    []events.Event // of AX_EVENT, in its order
	wipes     []int64        // when the store of NATS was gone, by the ledger's clock
	dead      map[string]bool
	exited    []string // processes that ended though nobody had asked
}

// violation is one broken promise.
type violation struct {
	kind string
	task string
	text string
}

func (v violation) String() string { return fmt.Sprintf("%s: %s: %s", v.kind, v.task, v.text) }

// judges are the verdict functions, each of one promise.
var judges = map[string]func(evidence) []violation{
	"lost": lost, "stuck": stuck, "wrong end": wrongEnd, "overlap": overlapped, "history": illegal, "unearned": unearned,
	"missing event": missingEvents, "event order": disordered, "dead letter": deadLetters, "exit": exits,
}

// judge asks all of them.
func judge(e evidence) []violation {
	var all []violation
	for name, ask := range judges {
		for _, v := range ask(e) {
			v.kind = name
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b violation) int { return slices.Compare([]string{a.kind, a.task}, []string{b.kind, b.task}) })
	return all
}

// queuedFor is how long a submission may wait in NATS: while the database is away, then until what a killed submitter had taken is handed
// out again, and all that while other faults follow and a busy machine is slow to start what was killed.
const queuedFor = int64(2 * time.Minute)

// excused tells that a task may be gone: it was only queued, and lately, when the store of NATS was deleted.
func (e evidence) excused(s submission) bool {
	return s.door == queued && slices.ContainsFunc(e.wipes, func(at int64) bool { return s.accepted <= at && at-s.accepted < queuedFor })
}

// lost finds accepted tasks that the database does not have.
func lost(e evidence) (all []violation) {
	for _, s := range e.submitted {
		if e.tasks[s.id] == nil && !e.excused(s) {
			all = append(all, violation{task: s.id, text: fmt.Sprintf("accepted (%s) and not in the database", s.door)})
		}
	}
	return all
}

// stuck finds tasks that have not come to an end.
func stuck(e evidence) (all []violation) {
	for _, t := range e.tasks {
		if !t.State.Terminal() {
			all = append(all, violation{task: t.ID, text: fmt.Sprintf("still %s, due %v, lease until %v, %s", t.State, t.ScheduledAt, t.LeaseUntil, last(t))})
		}
	}
	return all
}

// wrongEnd finds tasks that ended otherwise than they must.
func wrongEnd(e evidence) (all []violation) {
	for _, s := range e.submitted {
		if t := e.tasks[s.id]; t != nil && t.State.Terminal() && !slices.Contains(s.ends, t.State) {
			all = append(all, violation{task: s.id, text: fmt.Sprintf("ended as %s, not %v: %s", t.State, s.ends, last(t))})
		}
	}
	return all
}

func last(t *task.Task) string {
	if len(t.History) == 0 {
		return "without a history"
	}
	h := t.History[len(t.History)-1]
	return fmt.Sprintf("seq %d: %s -> %s (%s) by %s at %v", h.Seq, h.From, h.To, h.Reason, h.By, h.At)
}

// overlapped finds tasks that ran twice at the same time.
func overlapped(e evidence) (all []violation) {
	for _, o := range ledger.Overlaps(e.runs) {
		all = append(all, violation{task: o.First.Task, text: fmt.Sprintf("%s on %s until %d (%s), and %s on %s from %d",
			o.First.Execution, o.First.Worker, o.First.End, o.First.Result, o.Second.Execution, o.Second.Worker, o.Second.At)})
	}
	return all
}

// illegal finds histories with a move that the table does not have, or with a gap.
func illegal(e evidence) (all []violation) {
	for _, t := range e.tasks {
		for i, h := range t.History {
			switch {
			case !task.Allowed(h.From, h.To, h.Reason):
				all = append(all, violation{task: t.ID, text: fmt.Sprintf("seq %d: %q -> %s (%s) is no legal move", h.Seq, h.From, h.To, h.Reason)})
			case i > 0 && (t.History[i-1].Seq+1 != h.Seq || t.History[i-1].To != h.From):
				all = append(all, violation{task: t.ID, text: fmt.Sprintf("seq %d from %s follows seq %d to %s", h.Seq, h.From, t.History[i-1].Seq, t.History[i-1].To)})
			}
		}
		if n := len(t.History); n == 0 || t.History[n-1].Seq != t.Seq || t.History[n-1].To != t.State {
			all = append(all, violation{task: t.ID, text: fmt.Sprintf("is %s with seq %d: %s", t.State, t.Seq, last(t))})
		}
		if t.State.Terminal() && (t.WorkerID != "" || !t.LeaseUntil.IsZero()) {
			all = append(all, violation{task: t.ID, text: "ended, and still has an owner or a lease"})
		}
	}
	return all
}

// unearned finds what ax recorded and no handler did, and what a handler did without ax's leave.
func unearned(e evidence) (all []violation) {
	ok, claims := map[string]bool{}, map[string]bool{}
	for _, r := range e.runs {
		if r.Result == "ok" {
			ok[r.Execution] = true
		}
	}
	for _, t := range e.tasks {
		for _, h := range t.History {
			if h.To == task.Running && h.Reason == task.ReasonClaimed {
				claims[task.ExecutionID(h.Claim, t.ID)] = true
			}
		}
		if t.State == task.Success && !ok[t.ExecutionID()] {
			all = append(all, violation{task: t.ID, text: fmt.Sprintf("recorded as succeeded, but %s did not succeed by the ledger", t.ExecutionID())})
		}
	}
	for _, r := range e.runs {
		if e.tasks[r.Task] != nil && !claims[r.Execution] {
			all = append(all, violation{task: r.Task, text: fmt.Sprintf("%s ran on %s, and no claim of it is on record", r.Execution, r.Worker)})
		}
	}
	return all
}

// missingEvents finds changes that were never published.
func missingEvents(e evidence) (all []violation) {
	type key struct {
		id  string
		seq int64
	}
	seen := map[key]string{}
	for _, ev := range e.events {
		seen[key{ev.ID, ev.Seq}] = ev.State
	}
	for _, t := range e.tasks {
		for _, h := range t.History {
			switch state, there := seen[key{t.ID, h.Seq}]; {
			case !there:
				all = append(all, violation{task: t.ID, text: fmt.Sprintf("no event of seq %d of %d, %s -> %s (%s)", h.Seq, t.Seq, h.From, h.To, h.Reason)})
			case state != string(h.To):
				all = append(all, violation{task: t.ID, text: fmt.Sprintf("the event of seq %d says %s, the history %s", h.Seq, state, h.To)})
			}
		}
	}
	return all
}

// disordered reads the stream as a subscriber does, who ignores what is not above the last seq it saw: the rest must come
// without a gap. The stream that was made after a wipe may begin anywhere, so then only [missingEvents] judges.
func disordered(e evidence) (all []violation) {
	if len(e.wipes) > 0 {
		return nil
	}
	at := map[string]int64{}
	for _, ev := range e.events {
		if ev.Seq <= at[ev.ID] {
			continue
		}
		if ev.Seq != at[ev.ID]+1 {
			all = append(all, violation{task: ev.ID, text: fmt.Sprintf("the event of seq %d follows that of seq %d", ev.Seq, at[ev.ID])})
		}
		at[ev.ID] = ev.Seq
	}
	return all
}

// deadLetters finds tasks that failed for good and wait for nobody.
func deadLetters(e evidence) (all []violation) {
	for _, t := range e.tasks {
		if (t.State == task.Failed) != e.dead[t.ID] && t.OnExhausted == task.DeadLetter {
			all = append(all, violation{task: t.ID, text: fmt.Sprintf("is %s, and that it has a dead letter is %t", t.State, e.dead[t.ID])})
		}
	}
	return all
}

// exits finds processes that gave up by themselves.
func exits(e evidence) (all []violation) {
	for _, text := range e.exited {
		all = append(all, violation{task: "-", text: text})
	}
	return all
}
