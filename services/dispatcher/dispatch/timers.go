package dispatch

import (
	"container/heap"
	"strings"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// timers holds tasks that fall due soon, earliest first, each once. Their number is bounded: what does not fit is found by
// the sweep when it is due.
type timers struct {
	heap  timerHeap
	byID  map[string]*timer
	limit int
}

type timer struct {
	task  task.Candidate
	index int
}

func newTimers(limit int) *timers {
	return &timers{byID: make(map[string]*timer), limit: limit}
}

// set adds a task, or moves the one that is there if this is a newer reading of it. It reports whether the task is kept.
func (t *timers) set(c task.Candidate) bool {
	if old := t.byID[c.ID]; old != nil {
		if c.Seq < old.task.Seq {
			return true
		}
		c.ID, c.Type, c.Channel = old.task.ID, strings.Clone(c.Type), strings.Clone(c.Channel)
		old.task = c
		heap.Fix(&t.heap, old.index)
		return true
	}
	if len(t.heap) >= t.limit {
		return false
	}
	// Cloned: the strings of a change are parts of a longer one, which would be kept with them.
	c.ID, c.Type, c.Channel = strings.Clone(c.ID), strings.Clone(c.Type), strings.Clone(c.Channel)
	entry := &timer{task: c}
	t.byID[c.ID] = entry
	heap.Push(&t.heap, entry)
	return true
}

// remove forgets a task unless a newer reading than seq is set.
func (t *timers) remove(id string, seq int64) {
	if entry := t.byID[id]; entry != nil && entry.task.Seq <= seq {
		heap.Remove(&t.heap, entry.index)
		delete(t.byID, id)
	}
}

// due takes out up to limit tasks whose time is not after now.
func (t *timers) due(now time.Time, limit int) []task.Candidate {
	var due []task.Candidate
	for len(t.heap) > 0 && len(due) < limit && !t.heap[0].task.ScheduledAt.After(now) {
		entry := heap.Pop(&t.heap).(*timer)
		delete(t.byID, entry.task.ID)
		due = append(due, entry.task)
	}
	return due
}

// next is when the earliest falls due.
func (t *timers) next() (time.Time, bool) {
	if len(t.heap) == 0 {
		return time.Time{}, false
	}
	return t.heap[0].task.ScheduledAt, true
}

func (t *timers) room() int { return t.limit - len(t.heap) }

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].task.ScheduledAt.Before(h[j].task.ScheduledAt) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	entry := x.(*timer)
	entry.index = len(*h)
	*h = append(*h, entry)
}

func (h *timerHeap) Pop() any {
	old := *h
	entry := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return entry
}
