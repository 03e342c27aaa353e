package worker

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	// searchEvery is at most how often a worker looks for tasks in the database, and after how long without a signal: two
	// sweeps of the dispatcher.
	searchEvery = 5 * time.Second
	// maxFound bounds what one search brings. It is not held for anybody: others may claim it meanwhile.
	maxFound = 500
	minFound = 32 // of one type and priority
	// maxReads bounds the reads of one search, searchTimeout its time. The next search goes on where it ended.
	maxReads      = 200
	searchTimeout = 4 * time.Second
	firstWindow   = time.Second
)

// searcher finds due tasks in the database when no signals come, because NATS, the dispatcher or a message is gone.
type searcher struct {
	store   store
	intake  *intake
	kinds   []*kind
	channel string
	log     *quietLog
	metrics *metrics

	place  int  // where the last search ended, as priority x kinds + kind; 0: it was complete
	turn   int  // which type comes first among those of one priority
	backed bool // the last search found something
}

// run searches until ctx ends.
func (s *searcher) run(ctx context.Context) {
	for pause(ctx, searchEvery+rand.N(searchEvery/5)) {
		if !s.intake.idle(searchEvery - searchEvery/10) {
			continue
		}
		found, err := s.search(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.warn("search for tasks failed, trying on", "err", err)
		}
		s.backed = len(found) > 0
		if s.backed {
			s.metrics.found.Add(float64(len(found)))
			s.intake.find(found)
		}
	}
}

// search reads what is due in order of priority, then scheduledAt, in windows. What it had found before an error counts.
func (s *searcher) search(ctx context.Context) ([]*want, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	now, bound, err := s.store.Now()
	if err != nil {
		return nil, err
	}
	to := now.Add(-bound)
	if !s.backed {
		// One read tells an idle system from one with work, however many types there are.
		if due, err := s.store.Due(ctx, time.Time{}, to, 1); err != nil || len(due) == 0 {
			return nil, err
		}
	}
	var found []*want
	place, kinds := s.place, len(s.kinds)
	for reads := 0; err == nil && reads < maxReads && len(found) < maxFound && place < (task.MaxPriority+1)*kinds; {
		var level []*want // of one priority
		for end := (place/kinds + 1) * kinds; err == nil && reads < maxReads && place < end; place++ {
			var n int
			var part []*want
			part, n, err = s.read(ctx, s.kinds[(place+s.turn)%kinds], place/kinds, to)
			level = append(level, part...)
			reads += n
		}
		slices.SortStableFunc(level, func(a, b *want) int { return cmp.Compare(a.At, b.At) })
		found = append(found, level...)
	}
	s.place = place
	if err != nil || len(found) >= maxFound || place >= (task.MaxPriority+1)*kinds {
		s.place = 0 // from the most urgent again, with another type first
		s.turn++
	}
	return found, err
}

// read returns the earliest due tasks of one type and priority. The window begins at the first of them and doubles until it
// holds enough, so that no read touches much more than it returns.
func (s *searcher) read(ctx context.Context, k *kind, priority int, to time.Time) (found []*want, reads int, err error) {
	front, any, err := s.store.Front(ctx, k.name, s.channel, priority)
	reads = 1
	if err != nil || !any {
		return nil, reads, err
	}
	most := max(minFound, maxFound/len(s.kinds))
	for from, width := front, firstWindow; from.Before(to) && len(found) < most; from, width = from.Add(width), 2*width {
		until := from.Add(width)
		if until.After(to) {
			until = to
		}
		part, err := s.store.Candidates(ctx, task.Window{Type: k.name, Channel: s.channel, Priority: priority, From: from, To: until, Limit: most - len(found)})
		reads++
		if err != nil {
			return found, reads, err
		}
		for _, c := range part {
			t := events.SignalTask{ID: c.ID, Seq: c.Seq, Attempt: c.Attempts, At: c.ScheduledAt.UnixMilli()}
			found = append(found, &want{SignalTask: t, kind: k, born: time.Now()})
		}
	}
	return found, reads, nil
}
