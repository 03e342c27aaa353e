package dispatch

import (
	"strings"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	idleLane   = 10 * time.Minute // a lane or type without any change is forgotten
	watchLimit = 20_000           // timers
)

// board is what one term of leadership knows: lanes, ids in flight, timers, run times. One lock guards it; nothing under
// the lock waits for anything.
type board struct {
	clock   Clock
	horizon time.Duration
	out     func([]signal) // takes signals in the order of the calls, without waiting
	metrics *Metrics

	mu      sync.Mutex
	lanes   map[Lane]*lane
	made    int
	flying  map[string]*flight // ids in flight of all lanes
	types   map[string]*runs
	timers  *timers
	rung    chan struct{} // the earliest timer has changed
	exits   exits         // of the sweep and the walk
	number  uint64        // of the newest signal
	walked  bool          // everything due was looked at once since the stream is open
	queue   []*lane
	refills chan struct{} // there is something in the queue
	paused  map[*lane]time.Time
	nudged  chan struct{} // a lane was paused
	bus     gate
}

// gate keeps a bus that is away from being asked for every lane.
type gate struct {
	until    time.Time
	failures int
	failedAt time.Time
	err      error
}

func newBoard(clock Clock, horizon time.Duration, metrics *Metrics, out func([]signal)) *board {
	return &board{
		clock: clock, horizon: horizon, out: out, metrics: metrics,
		lanes: make(map[Lane]*lane), flying: make(map[string]*flight), types: make(map[string]*runs),
		timers: newTimers(watchLimit), paused: make(map[*lane]time.Time),
		rung: make(chan struct{}, 1), refills: make(chan struct{}, refillers), nudged: make(chan struct{}, 1),
	}
}

// observe takes in what the change stream saw, in its order. Signals for what is due leave at once.
func (b *board) observe(batch []task.Observed) {
	now := time.Now()
	server, bound, err := b.clock.Now()
	known := err == nil
	b.mu.Lock()
	defer b.mu.Unlock()
	var newest map[string]int64 // a task may change several times in a batch; only its last change decides where it stands
	if len(batch) > 1 {
		newest = make(map[string]int64, len(batch))
		for i := range batch {
			newest[batch[i].ID] = batch[i].Change.Seq
		}
	}
	offers := make([]offer, 0, len(batch))
	for i := range batch {
		id, ch := batch[i].ID, &batch[i].Change
		b.measure(id, ch, now)
		if ch.To != task.Pending {
			b.left(id, ch, now)
			continue
		}
		if newest != nil && newest[id] != ch.Seq {
			continue
		}
		c := task.Candidate{
			ID: id, Type: ch.Type, Channel: ch.Channel, Priority: ch.Priority,
			ScheduledAt: ch.ScheduledAt, Seq: ch.Seq, Attempts: ch.Attempt,
		}
		dueBy := ch.At // without a clock the time of the write serves: it is the database's too
		if known {
			dueBy = server.Add(-bound)
		}
		if !c.ScheduledAt.After(dueBy) {
			b.timers.remove(id, c.Seq)
			offers = append(offers, offer{lane: b.lane(c.Type, c.Channel, c.Priority, now), task: c, fresh: ch.From != task.Pending})
			continue
		}
		if f := b.flying[id]; f != nil && f.seq < c.Seq {
			b.land(id, f, now) // put off while it was in flight
		}
		b.watch(c, dueBy)
	}
	b.offer(offers, now)
}

// watch sets a timer for a task that falls due within the horizon. Later ones, and those for which there is no room, are
// the sweep's.
func (b *board) watch(c task.Candidate, server time.Time) {
	if c.ScheduledAt.After(server.Add(b.horizon)) {
		b.timers.remove(c.ID, c.Seq)
		return
	}
	next, any := b.timers.next()
	if b.timers.set(c) && (!any || c.ScheduledAt.Before(next)) {
		poke(b.rung)
	}
}

// measure follows run times and start rates.
func (b *board) measure(id string, ch *task.Change, now time.Time) {
	if ch.To != task.Running && ch.From != task.Running {
		return
	}
	r := b.runsOf(ch.Type)
	r.usedAt = now
	switch {
	case ch.From == ch.To: // a cancel request
	case ch.To == task.Running:
		r.begin(id, ch.At)
		l := b.lane(ch.Type, ch.Channel, ch.Priority, now)
		l.started.add(now, 1)
		l.startedAt = now
	default:
		l := b.lanes[Lane{ch.Type, ch.Channel, task.LaneOf(ch.Priority)}]
		r.end(id, ch.At, l != nil && l.backlog)
	}
}

// left takes a task that left pending out of flight.
func (b *board) left(id string, ch *task.Change, now time.Time) {
	b.timers.remove(id, ch.Seq)
	b.exits.note(id, ch.Seq)
	f := b.flying[id]
	if f == nil {
		if l := b.lanes[Lane{ch.Type, ch.Channel, task.LaneOf(ch.Priority)}]; l != nil {
			l.exits.note(id, ch.Seq)
		}
		return
	}
	f.lane.exits.note(id, ch.Seq)
	if f.seq >= ch.Seq {
		return // the signal is about a later stay in pending than this exit
	}
	if ch.To == task.Running {
		f.lane.wait.add(now.Sub(f.sentAt))
	}
	b.land(id, f, now)
}

// land takes an id out of flight, which may make room for a refill.
func (b *board) land(id string, f *flight, now time.Time) {
	delete(b.flying, id)
	f.lane.held--
	f.lane.usedAt = now
	b.wake(f.lane, now)
}

// lane finds or makes a lane.
func (b *board) lane(taskType, channel string, priority int, now time.Time) *lane {
	key := Lane{taskType, channel, task.LaneOf(priority)}
	l := b.lanes[key]
	if l == nil {
		// Cloned: the strings of a change are parts of a longer one, which would be kept with them.
		key.Type, key.Channel = strings.Clone(taskType), strings.Clone(channel)
		b.made++
		l = &lane{key: key, number: b.made}
		l.signals, l.ids = b.metrics.ofLane(key)
		b.lanes[key] = l
	}
	l.usedAt = now
	return l
}

func (b *board) runsOf(taskType string) *runs {
	r := b.types[taskType]
	if r == nil {
		r = &runs{}
		b.types[strings.Clone(taskType)] = r
	}
	return r
}

// size says how many ids of the type may share a signal, and whether its tasks are short.
func (b *board) size(taskType string) (group int, short bool) {
	if r := b.types[taskType]; r != nil {
		return r.group(), r.short()
	}
	return 1, false
}

// slots takes in what the workers announced.
func (b *board) slots(smallest map[string]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, r := range b.types {
		r.slots = smallest[name]
	}
	now := time.Now()
	for name, n := range smallest {
		if b.types[name] == nil {
			r := b.runsOf(name)
			r.slots, r.usedAt = n, now
		}
	}
}

// tidy forgets lanes and types that nothing has happened to for long, and executions that are not short in any case.
func (b *board) tidy() {
	server, _, err := b.clock.Now()
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, l := range b.lanes {
		if l.held == 0 && !l.backlog && !l.refilling && now.Sub(l.usedAt) > idleLane {
			delete(b.lanes, key)
			delete(b.paused, l)
		}
	}
	b.metrics.retain(b.lanes)
	for name, r := range b.types {
		if err == nil {
			r.settle(server)
		}
		if now.Sub(r.usedAt) > idleLane {
			delete(b.types, name)
		}
	}
}

// forget takes everything out of flight and feeds every lane again: the signals are gone, or, where changes were missed,
// nobody can tell which ids are still to be started.
func (b *board) forget(missed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.metrics.resends.Add(float64(len(b.flying)))
	clear(b.flying)
	if missed {
		b.walked = false
	}
	for _, l := range b.lanes {
		l.held, l.whole = 0, true
		if missed {
			l.drained = false
		}
		b.mark(l, nil, false, now)
		b.wake(l, now)
	}
}

// counts are for the gauges.
func (b *board) counts() (flying, lanes, backlog, timers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lanes {
		if l.backlog {
			backlog++
		}
	}
	return len(b.flying), len(b.lanes), backlog, len(b.timers.heap)
}

// poke makes a channel of one place readable.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
