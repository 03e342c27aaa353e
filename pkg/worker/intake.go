package worker

import (
	"sync"
	"time"

	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	// holdEarly is how far ahead of its time a signal may be and still be held. What is earlier is acknowledged: the
	// dispatcher's timer sends it again.
	holdEarly = time.Second
	// holdBusy is how long a signal may wait for a slot before it is given back for other workers.
	holdBusy = 100 * time.Millisecond
	// shortRun is the mean run time below which signals are fetched ahead of free slots.
	shortRun = 50 * time.Millisecond
	// maxAhead bounds how many ids are held beyond the free slots.
	maxAhead = 256
)

// kind is a task type of this worker. The counts belong to the intake and are guarded by its lock.
type kind struct {
	name    string
	limit   int // tasks of it that may run at the same time
	handler Handler

	running  int           // handlers that have not returned
	claiming int           // slots kept for claims under way
	waiting  int           // ids that wait for a claim
	moved    time.Time     // when a handler last began or returned
	mean     time.Duration // moving average of run times; 0: none measured yet
}

// want is a task that somebody suggested to claim.
type want struct {
	events.SignalTask
	kind *kind
	from *signal   // nil: found in the database
	born time.Time // may be claimed from then on, by the monotonic clock
}

// signal is a message that is held until the database has decided about each of its ids.
type signal struct {
	msg      events.Message
	subject  string
	open     int       // ids without a decision
	ids      int       // ids it came with, apart from those that were too early
	spoiled  bool      // a claim failed: let the message be delivered again
	extended time.Time // when the server last heard that the message is held
}

// intake counts slots and keeps what waits for them. Everything that is to run passes through it: a signal or a find adds
// wants, the claimer takes them as slots become free, and a slot is given back when its handler has returned.
type intake struct {
	clock   func() (now time.Time, bound time.Duration, err error)
	slots   int
	claims  bell // something to claim, or a slot to claim for
	fetches bell // room to fetch signals for
	full    func() bool
	log     *quietLog
	metrics *metrics

	mu       sync.Mutex
	closed   bool
	running  int
	claiming int
	waiting  []*want // in order of arrival
	early    []*want // waiting for their time
	found    []*want // from the database, in order of urgency; nobody else misses them while they wait
	held     map[*signal]struct{}
	signals  time.Time // when the last signal came
	moved    time.Time // when a handler last began or returned
}

// ahead is how many ids of a kind may be held beyond the free slots: what will start in about a tenth of a second.
func (q *intake) ahead(k *kind) int {
	if k.mean == 0 || k.mean > shortRun {
		return 0
	}
	return int(min(int64(maxAhead), int64(min(k.limit, q.slots))*int64(holdBusy)/int64(k.mean)))
}

func (q *intake) free(k *kind) int {
	return min(q.slots-q.running-q.claiming, k.limit-k.running-k.claiming)
}

// room is how many more ids of a kind may be fetched. Those that are early do not count as long as they are few.
func (q *intake) room(k *kind) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.roomLocked(k)
}

func (q *intake) roomLocked(k *kind) int {
	if q.closed || q.full() {
		return 0
	}
	early := max(0, len(q.early)-largeBatch)
	total := q.slots - q.running - q.claiming - len(q.waiting) - early
	own := k.limit - k.running - k.claiming - k.waiting - early
	return max(0, min(total, own)+q.ahead(k))
}

// offer takes a message of a lane. It returns how many ids it carried.
func (q *intake) offer(k *kind, subject string, msg events.Message) int {
	s, err := events.DecodeSignal(msg.Data)
	if err != nil {
		q.log.warn("signal cannot be read, dropped", "subject", subject, "err", err)
		_ = msg.Term("not a signal") // lost: it comes once more and is dropped then
		return 1
	}
	now := time.Now()
	q.mu.Lock()
	q.signals = now
	q.found = nil // the dispatcher is at work, and knows better what is due
	if q.roomLocked(k) == 0 {
		q.mu.Unlock()
		q.metrics.returned.Inc()
		_ = msg.NakWithDelay(0) // lost: it comes again after its wait
		return len(s.Tasks)
	}
	sig := &signal{msg: msg, subject: subject, extended: now}
	for _, t := range s.Tasks {
		wait := q.until(t.At)
		if wait > holdEarly {
			continue
		}
		w := &want{SignalTask: t, kind: k, from: sig, born: now.Add(wait)}
		if wait > 0 {
			q.early = append(q.early, w)
		} else {
			q.waiting = append(q.waiting, w)
			k.waiting++
		}
		sig.open++
	}
	sig.ids = sig.open
	if sig.ids > 0 {
		q.held[sig] = struct{}{}
	}
	q.mu.Unlock()
	if sig.ids == 0 {
		_ = msg.Ack() // too early, all of it
	} else {
		q.claims.ring()
	}
	return len(s.Tasks)
}

// until tells how long a task that falls due at the given time of the database cannot be claimed yet. A claim compares with
// the earliest the database's time can be, so this does, too. When the time is not known the claim will say so.
func (q *intake) until(atMs int64) time.Duration {
	now, bound, err := q.clock()
	if err != nil {
		return 0
	}
	return time.UnixMilli(atMs).Sub(now.Add(-bound - time.Millisecond))
}

// find adds tasks that were found in the database. They replace the finds of before.
func (q *intake) find(found []*want) {
	q.mu.Lock()
	q.found = found
	q.mu.Unlock()
	q.claims.ring()
}

// claimable is how many wants could be claimed now at the most. With more, others wait for slots, of which several may become
// free in the same moment. next is when an early one falls due; zero: none.
func (q *intake) claimable(now time.Time) (n int, more bool, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ripen(now)
	for _, w := range q.early {
		if next.IsZero() || w.born.Before(next) {
			next = w.born
		}
	}
	if q.closed || q.full() {
		return 0, false, next
	}
	free := q.slots - q.running - q.claiming
	for _, list := range [][]*want{q.waiting, q.found} {
		for _, w := range list {
			if w.kind.running+w.kind.claiming >= w.kind.limit || n == free {
				more = true
			} else {
				n++
			}
		}
	}
	return n, more && q.running > 0, next
}

// waits reports whether wants wait for a slot.
func (q *intake) waits() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) > 0
}

// ripen moves early wants whose time has come to the others.
func (q *intake) ripen(now time.Time) {
	rest := q.early[:0]
	for _, w := range q.early {
		if w.born.After(now) {
			rest = append(rest, w)
			continue
		}
		q.waiting = append(q.waiting, w)
		w.kind.waiting++
	}
	clear(q.early[len(rest):])
	q.early = rest
}

// take removes up to most wants for one claim, in order of arrival, and keeps a slot for each.
func (q *intake) take(most int) []*want {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	var batch []*want
	seen := make(map[string]bool)
	pick := func(list []*want, count func(*kind)) []*want {
		rest := list[:0]
		for _, w := range list {
			if len(batch) >= most || q.free(w.kind) <= 0 || seen[w.ID] {
				rest = append(rest, w)
				continue
			}
			seen[w.ID] = true
			count(w.kind)
			w.kind.claiming++
			q.claiming++
			batch = append(batch, w)
		}
		clear(list[len(rest):])
		return rest
	}
	q.waiting = pick(q.waiting, func(k *kind) { k.waiting-- })
	q.found = pick(q.found, func(*kind) {})
	return batch
}

// claimed settles a batch. decided holds what was won: true for a task that is run, whose slot is held until returned is
// called, false for one that is handed back. With sure, the others belong to somebody else or are not due, and signals without
// open ids are acknowledged. Without, nobody knows about them, and they are left to be delivered again.
func (q *intake) claimed(batch []*want, decided map[string]bool, sure bool) {
	var done []*signal
	now := time.Now()
	q.mu.Lock()
	for _, w := range batch {
		w.kind.claiming--
		q.claiming--
		run, won := decided[w.ID]
		if run {
			w.kind.running++
			q.running++
			w.kind.moved, q.moved = now, now
		}
		if w.from != nil {
			w.from.spoiled = w.from.spoiled || !sure && !won
			done = q.decide(w.from, 1, done)
		}
	}
	q.mu.Unlock()
	settle(done)
	q.claims.ring()
	q.fetches.ring()
}

// decide counts n ids of a signal as decided, and adds the signal to done when none is left open.
func (q *intake) decide(s *signal, n int, done []*signal) []*signal {
	if s.open -= n; s.open > 0 {
		return done
	}
	delete(q.held, s)
	if s.spoiled {
		return done
	}
	return append(done, s)
}

// settle acknowledges signals. One that is lost means a redelivery and a claim that wins nothing.
func settle(done []*signal) {
	for _, s := range done {
		_ = s.msg.Ack()
	}
}

// returned frees the slot of a handler that ran for the given time.
func (q *intake) returned(k *kind, ran time.Duration) {
	q.mu.Lock()
	k.running--
	q.running--
	k.moved = time.Now()
	q.moved = k.moved
	if k.mean == 0 {
		k.mean = max(ran, 1)
	} else {
		k.mean = max(1, k.mean+(ran-k.mean)/8)
	}
	q.mu.Unlock()
	q.claims.ring()
	q.fetches.ring()
}

// idle reports whether a slot is free and no signal has come for so long.
func (q *intake) idle(quiet time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.closed && !q.full() && q.running+q.claiming < q.slots && time.Since(q.signals) >= quiet
}

// busy counts handlers that have not returned and slots kept for claims.
func (q *intake) busy() (running, claiming int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running, q.claiming
}
