package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	baseDepth  = 64    // ids in flight of a lane on top of what it started within the last second
	shortDepth = 256   // the same where tasks are known to be short
	maxDepth   = 8_192 // whatever the rate; the stream holds at most 10,000 signals of a lane
	fewBeyond  = 8     // ids beyond the depth for tasks more urgent than what is being fed

	// settled is how far behind now everything is taken to be fed while a lane is not in backlog.
	settled = time.Second

	// wholeEvery is how long a lane in backlog is fed from its frontier before a refill reads from the very front again, for
	// what sorts earlier and whose change was never seen.
	wholeEvery = time.Second

	firstPause = 250 * time.Millisecond // of a lane, or of the bus, after a signal was refused or failed
	lastPause  = 5 * time.Second
)

// lane is what the leader knows of one lane. All of it is guarded by the board's lock, but for fronts, which belongs to
// the one refill that runs.
type lane struct {
	key    Lane
	number int // lanes in the order of their making
	held   int // ids in flight

	started   meter     // ids started within the last second
	wait      average   // from signal to start
	startedAt time.Time // when one started last; times without a word beside them are the process's own

	backlog   bool
	drained   bool     // it left backlog once: everything due has been fed since
	fed       position // of the id handed out last in the lane's order
	refilling bool     // queued for a refill, or being refilled
	notBefore time.Time
	failures  int // refused or failed publishes in a row
	unread    int // failed reads in a row

	whole   bool      // the next refill reads from the very front: ids were taken out of flight that may still wait
	wholeAt time.Time // when one did last

	fronts   [4]front // by priority, counted from the lane's first; while refilling, the refill's
	supposed []suppose
	exits    exits

	usedAt time.Time

	signals, ids prometheus.Counter
}

// suppose is a word on the frontier that came while the fronts were with a refill.
type suppose struct {
	fed, seen time.Time
	priority  int
}

// flight is an id in flight: signalled, and not seen to leave pending.
type flight struct {
	lane   *lane
	seq    int64
	signal uint64    // number of the signal that carries it
	sentAt time.Time // when it was handed to the bus
	acked  bool      // the bus has it
}

// depth is how many ids of the lane may be in flight.
func (l *lane) depth(now time.Time, short bool) int {
	base := baseDepth
	if short {
		base = shortDepth
	}
	return min(base+l.started.rate(now), maxDepth)
}

// backoff is the wait after a number of failures in a row: doubling, up to a limit, with up to half of it more at random.
func backoff(failures int) time.Duration {
	d := lastPause
	if failures < 5 {
		d = min(firstPause<<failures, lastPause)
	}
	return d + rand.N(d/2)
}

// suppose passes a word on the frontiers on: everything before fed was fed, and a task of the priority was seen at seen.
func (l *lane) suppose(s suppose) {
	if l.refilling {
		if len(l.supposed) < 64 {
			l.supposed = append(l.supposed, s)
		} else {
			l.whole = true // too many to remember
		}
		return
	}
	first, last := l.key.Lane.Priorities()
	for p := first; p <= last; p++ {
		if p == s.priority {
			l.fronts[p-first].suppose(s.fed, s.seen)
		} else {
			l.fronts[p-first].suppose(s.fed, time.Time{})
		}
	}
}

// refilled takes the fronts back.
func (l *lane) refilled() {
	l.refilling = false
	for _, s := range l.supposed {
		l.suppose(s)
	}
	l.supposed = l.supposed[:0]
}

// exits remembers which ids left pending while a read is under way. What the read found of them is no longer true.
type exits struct {
	readers int
	seqs    map[string]int64
}

func (e *exits) begin() { e.readers++ }

func (e *exits) end() {
	if e.readers--; e.readers == 0 {
		clear(e.seqs)
	}
}

func (e *exits) note(id string, seq int64) {
	if e.readers == 0 {
		return
	}
	if e.seqs == nil {
		e.seqs = make(map[string]int64)
	}
	e.seqs[id] = seq
}

func (e *exits) left(c *task.Candidate) bool { return e.seqs[c.ID] > c.Seq }
