package events

import "container/list"

// seen remembers the highest seq handled of the tasks it met last. Not safe for concurrent use.
type seen struct {
	limit int
	order *list.List // of *seenTask, the one met last in front
	tasks map[string]*list.Element
}

type seenTask struct {
	id  string
	seq int64
}

func newSeen(limit int) *seen {
	return &seen{limit: limit, order: list.New(), tasks: make(map[string]*list.Element)}
}

// last returns the highest seq marked for a task, 0 for one that is not remembered.
func (s *seen) last(id string) int64 {
	if e, ok := s.tasks[id]; ok {
		return e.Value.(*seenTask).seq
	}
	return 0
}

func (s *seen) mark(id string, seq int64) {
	if e, ok := s.tasks[id]; ok {
		s.order.MoveToFront(e)
		e.Value.(*seenTask).seq = max(seq, e.Value.(*seenTask).seq)
		return
	}
	s.tasks[id] = s.order.PushFront(&seenTask{id, seq})
	if s.order.Len() > s.limit {
		oldest := s.order.Back()
		s.order.Remove(oldest)
		delete(s.tasks, oldest.Value.(*seenTask).id)
	}
}
