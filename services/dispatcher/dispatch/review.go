package dispatch

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	reviewLanes = 128 // lanes asked about in one turn
	infoTimeout = 2 * time.Second

	// signalAge is how long AX_WORK keeps a signal. After it nothing of it can be left, whoever listens.
	signalAge = 10 * time.Minute
	// overdueAfter is how long an id may be in flight beyond twice its lane's wait before its signal is taken for lost.
	overdueAfter = 10 * time.Second
)

// reviewer finds signals that were lost, by asking the bus what is left of lanes whose ids are long in flight. Such ids are
// taken out of flight and their lane is fed again: the database tells which of them still wait.
type reviewer struct {
	board *board
	bus   Bus
	mode  *mode
	log   *slog.Logger
	every time.Duration // half a sweep, so that a lost signal is found within one
	after int           // number of the lane asked about last

	stream string // the creation of the stream that all signals of this term are in
}

func (r *reviewer) run(ctx context.Context) error {
	failing, full := false, false
	_ = r.wiped(ctx) // to know it from the beginning; an error shows again
	for ctx.Err() == nil {
		every, age := r.every, r.every
		streaming := r.mode.streaming.Load()
		if !streaming { // claims are not seen: what the bus holds tells how far the workers are
			every, age = r.every/4, 0
		}
		sleep(ctx, jittered(every))
		err := r.turn(ctx, age, streaming)
		if err != nil && !failing && ctx.Err() == nil {
			r.log.Warn("cannot ask what is left of signals", "err", err)
		}
		failing = err != nil
		if _, _, backlog, _ := r.board.counts(); (backlog > 0) != full {
			if full = !full; full {
				r.log.Info("lanes hold as many signals as they may; what else is due waits in the database", "lanes", backlog)
			} else {
				r.log.Info("no lane is full any more")
			}
		}
	}
	return nil
}

func (r *reviewer) turn(ctx context.Context, age time.Duration, streaming bool) error {
	lanes := r.board.aged(age, r.after, reviewLanes)
	if len(lanes) == 0 {
		return nil
	}
	if err := r.wiped(ctx); err != nil {
		return err
	}
	verdicts := make(map[*lane]verdict, len(lanes))
	var failed error
	for _, l := range lanes {
		r.after = l.number
		asked := time.Now()
		asking, cancel := context.WithTimeout(ctx, infoTimeout)
		info, err := r.bus.LaneInfo(asking, l.key.Type, l.key.Channel, string(l.key.Lane))
		cancel()
		if err != nil {
			failed = err
			break // the next turn begins behind this lane
		}
		verdicts[l] = verdict{info: info, asked: asked, age: age}
	}
	r.board.review(verdicts, streaming)
	return failed
}

// wiped feeds all lanes again when the stream of signals is another one than before.
func (r *reviewer) wiped(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	stream, err := r.bus.SignalStream(asking)
	if err != nil {
		return err
	}
	if r.stream != "" && r.stream != stream {
		r.log.Warn("the bus has lost all signals: they are sent again")
		r.board.forget(false)
	}
	r.stream = stream
	return nil
}

// verdict is what the bus said of a lane, and when it was asked.
type verdict struct {
	info  events.LaneInfo
	asked time.Time
	age   time.Duration // younger signals are left alone
	from  uint64        // without a stream: signals below this number were looked at
}

// left is how many of the lane's signals the bus still holds.
func (v verdict) left() int { return int(v.info.Pending + v.info.AckPending) }

// aged returns lanes that have ids in flight for longer than age, up to limit, beginning behind the lane numbered after.
func (b *board) aged(age time.Duration, after, limit int) []*lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	seen := make(map[*lane]bool)
	for _, f := range b.flying {
		if f.acked && now.Sub(f.sentAt) >= age {
			seen[f.lane] = true
		}
	}
	lanes := make([]*lane, 0, len(seen))
	for l := range seen {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(x, y *lane) int {
		if (x.number > after) != (y.number > after) {
			if x.number > after {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.number, y.number)
	})
	return lanes[:min(len(lanes), limit)]
}

// review takes ids out of flight whose signals are gone, and feeds their lanes again.
func (b *board) review(verdicts map[*lane]verdict, streaming bool) {
	if len(verdicts) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !streaming {
		b.lookedAt(verdicts)
	}
	gone := make(map[*lane]int)
	for id, f := range b.flying {
		v, asked := verdicts[f.lane]
		if !asked || !f.acked {
			continue
		}
		over := f.lost(v, now)
		if !streaming {
			over = over || f.sentAt.Before(v.asked) && f.signal < v.from
		}
		if over {
			delete(b.flying, id)
			f.lane.held--
			gone[f.lane]++
		}
	}
	for l, n := range gone {
		if streaming {
			b.metrics.resends.Add(float64(n))
		} else {
			l.started.add(now, n)
			l.startedAt = now
		}
		l.whole = true
		b.mark(l, nil, false, now)
		b.wake(l, now)
	}
}

// lost tells that nothing of an id's signal can be left in the bus, or that it is long overdue.
func (f *flight) lost(v verdict, now time.Time) bool {
	age := now.Sub(f.sentAt)
	switch {
	case age > signalAge:
		return true
	case v.left() == 0:
		return v.asked.Sub(f.sentAt) >= v.age && f.sentAt.Before(v.asked)
	case !v.info.Exists:
		return false // nobody listens: repeats would only fill the stream
	}
	// While nothing starts the lane's wait is at least as long as that lasts: its workers are busy.
	idle := age
	if !f.lane.startedAt.IsZero() {
		idle = now.Sub(f.lane.startedAt)
	}
	return age > overdueAfter+2*max(f.lane.wait.value, idle)
}

// lookedAt finds, without a change stream, which signals the workers have done with: they take them in order, so what is
// left are the newest.
func (b *board) lookedAt(verdicts map[*lane]verdict) {
	numbers := make(map[*lane][]uint64)
	for _, f := range b.flying {
		if v, asked := verdicts[f.lane]; asked && f.acked && f.sentAt.Before(v.asked) {
			numbers[f.lane] = append(numbers[f.lane], f.signal)
		}
	}
	for l, list := range numbers {
		slices.Sort(list)
		list = slices.Compact(list)
		v := verdicts[l]
		if left := v.left(); left < len(list) {
			v.from = list[len(list)-1] + 1
			if left > 0 {
				v.from = list[len(list)-left]
			}
			verdicts[l] = v
		}
	}
}
