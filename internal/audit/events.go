package audit

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"time"

	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	// keptEvents is how many events of a task are remembered, the newest: histories keep no more.
	keptEvents = task.MaxHistory
	// mostTrails is how many tasks' events are remembered, some 100 MB.
	mostTrails = 1_000_000
	// floorMargin covers what the two clocks were compared by, and what a change is told to be earlier than it was.
	floorMargin = 2 * time.Second
	progressBy  = 1000
)

// Marks of what is known of one seq of a task; any other value is the hash of what the event said.
const (
	unseen    = 0
	announced = 1 // by a gap event
)

// trail is what was published of one task: marks[i] is of seq first+i. Opened is the seq that the stream told first: what comes
// below it later was published once before, in a stream that is no more, and is told again.
type trail struct {
	first  int64
	opened int64
	marks  []uint32
}

// trails are the trails of all tasks whose events the stream holds. Tasks are known by a hash of their id: one of 64 bits, so that two of
// a million share one by a chance of one to thirty million.
type trails struct {
	seed  maphash.Seed
	tasks map[uint64]*trail
	floor time.Time // changes from here on must be in the stream, by the database's clock
	since time.Time
}

// readEvents follows the whole stream once.
func (a *audit) readEvents(ctx context.Context) error {
	if a.told.IsZero() {
		a.unchecked("events: the notifier has never run, so that none is due")
	}
	tr := &trails{seed: maphash.MakeSeed(), tasks: map[uint64]*trail{}, since: a.Since}
	full := false
	held, err := a.Events.ReplayEvents(ctx, a.Type, func(m natsbus.Message) error {
		if a.sum.Events++; a.sum.Events%progressBy == 0 {
			a.progress("events", a.sum.Events)
		}
		e, err := events.DecodeEvent(m.Data)
		if err != nil {
			return a.report(Violation{Kind: EventContent, Text: fmt.Sprintf("message %d of %s on %s is no event: %v", m.Sequence, events.StreamEvent, m.Subject, err)})
		}
		v, room := tr.add(e)
		full = full || !room
		if v == nil {
			return nil
		}
		return a.report(*v)
	})
	if err != nil {
		return err
	}
	if full {
		a.unchecked("events: the stream tells of more than %d tasks; give --type", mostTrails)
	}
	now, _, err := a.store.Now()
	if err != nil {
		return fmt.Errorf("ask for the database's time: %w", err)
	}
	tr.floor = held.Created
	if held.Dropped {
		tr.floor = held.First
	}
	// The stream's times are those of another clock.
	tr.floor = tr.floor.Add(now.Sub(held.Now) + floorMargin)
	if !full {
		a.trails = tr
	}
	return nil
}

// add takes an event and returns what is wrong with its place, if anything; false when there is no room for another task.
func (tr *trails) add(e events.Event) (*Violation, bool) {
	key := maphash.String(tr.seed, e.ID)
	t := tr.tasks[key]
	if t == nil {
		if len(tr.tasks) == mostTrails {
			return nil, false
		}
		t = &trail{first: e.Seq, opened: e.Seq}
		tr.tasks[key] = t
	}
	if e.Gap != nil {
		for seq := max(e.Gap.FromSeq, e.Gap.ToSeq-keptEvents+1); seq <= e.Gap.ToSeq; seq++ {
			if t.at(seq) == unseen {
				t.set(seq, announced)
			}
		}
		return nil, true
	}
	mark := markOf(e.Seq, e.Type, e.From, e.State, e.Reason, e.Attempt, e.ExecutionID, e.At, e.By)
	bad := func(kind Kind, format string, args ...any) *Violation {
		if at, err := time.Parse(time.RFC3339, e.At); err == nil && at.Before(tr.since) {
			return nil
		}
		return &Violation{Kind: kind, Task: e.ID, Type: e.Type, Seq: e.Seq, Text: fmt.Sprintf(format, args...)}
	}
	newest := t.first + int64(len(t.marks)) - 1
	before := t.at(e.Seq)
	t.set(e.Seq, mark)
	switch {
	case before != unseen && before != announced && before != mark:
		return bad(EventContent, "two events of change %d say different things", e.Seq), true
	case before == unseen && e.Seq > t.opened && e.Seq < newest:
		return bad(EventOrder, "the event of change %d was first published after that of change %d", e.Seq, newest), true
	}
	return nil, true
}

// at returns what is known of one change.
func (t *trail) at(seq int64) uint32 {
	if i := seq - t.first; i >= 0 && i < int64(len(t.marks)) {
		return t.marks[i]
	}
	return unseen
}

// set remembers one change, and forgets the oldest where there are too many.
func (t *trail) set(seq int64, mark uint32) {
	switch n := int64(len(t.marks)); {
	case n == 0 || seq >= t.first+n+keptEvents:
		t.first, t.marks = seq, append(t.marks[:0], mark)
	case seq < t.first:
		if front := t.first - seq; front+n <= keptEvents {
			t.marks = append(make([]uint32, front, front+n), t.marks...)
			t.first, t.marks[0] = seq, mark
		}
	case seq < t.first+n:
		t.marks[seq-t.first] = mark
	default:
		for t.first+int64(len(t.marks)) < seq {
			t.marks = append(t.marks, unseen)
		}
		t.marks = append(t.marks, mark)
		if over := len(t.marks) - keptEvents; over > 0 {
			t.marks = append(t.marks[:0], t.marks[over:]...)
			t.first += int64(over)
		}
	}
}

var markSeed = maphash.MakeSeed()

// markOf is a hash of what an event says that its task's history says as well.
func markOf(seq int64, taskType, from, to, reason string, attempt int, execution, at, by string) uint32 {
	var h maphash.Hash
	h.SetSeed(markSeed)
	for _, part := range []string{strconv.FormatInt(seq, 10), taskType, from, to, reason, strconv.Itoa(attempt), execution, at, by} {
		_, _ = h.WriteString(part)
		_ = h.WriteByte('|')
	}
	return max(uint32(h.Sum64()), announced+1)
}

// compare checks a task's kept history against what was published of it. due is up to when changes must have been.
func (tr *trails) compare(t *task.Task, due time.Time) []Violation {
	known := tr.tasks[maphash.String(tr.seed, t.ID)]
	if known == nil {
		known = &trail{}
	}
	var out []Violation
	var missing []int64
	for _, e := range t.History {
		switch mark := known.at(e.Seq); {
		case mark == announced:
		case mark == unseen:
			if !e.At.Before(tr.floor) && !e.At.After(due) && !e.At.Before(tr.since) {
				missing = append(missing, e.Seq)
			}
		case mark != markOf(e.Seq, t.Type, string(e.From), string(e.To), string(e.Reason), e.Attempt, task.ExecutionID(e.Claim, t.ID),
			events.FormatTime(e.At), e.By):
			out = append(out, Violation{Kind: EventContent, Task: t.ID, Type: t.Type, Seq: e.Seq, Text: fmt.Sprintf(
				"the event of change %d says other than the history: %s -> %s (%s) by %s at %s", e.Seq, from(e.From), e.To, e.Reason, e.By, events.FormatTime(e.At))})
		}
	}
	if len(missing) > 0 {
		out = append(out, Violation{Kind: EventMissing, Task: t.ID, Type: t.Type, Seq: missing[0], Text: fmt.Sprintf(
			"no event tells of %d of its changes: %v", len(missing), missing[:min(len(missing), 10)])})
	}
	if newest := known.first + int64(len(known.marks)) - 1; len(known.marks) > 0 && newest > t.Seq {
		out = append(out, Violation{Kind: EventContent, Task: t.ID, Type: t.Type, Seq: newest, Text: fmt.Sprintf(
			"an event tells of change %d, and its newest change is %d", newest, t.Seq)})
	}
	return out
}
