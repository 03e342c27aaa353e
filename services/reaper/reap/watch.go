package reap

import (
	"encoding/json"
	"sync"
	"time"
)

// stepLimit is how far the database's clock may move against our monotonic one between two readings.
const stepLimit = time.Second

// watch judges whether leases can be believed. A lease that looks over proves that its owner is gone only if the owner could
// have extended it: the database was within reach, the same server answered, and its clock did not jump. Whenever that was
// not so, the watch wants one whole lease of undisturbed readings before anything may be revived, so that every live worker
// has beaten again by then.
//
// Its own times are monotonic; the database's are only ever compared with the database's.
type watch struct {
	lease time.Duration // of workers; the length of a pause
	beat  time.Duration // silence longer than this is an outage

	mu       sync.Mutex
	last     reading
	since    time.Time // when the unbroken run of readings began
	resumeAt time.Time // nothing is revived before
	why      string    // the pause's reason, for logs and metrics
	steadyAt time.Time // nothing is ended by the clock alone before: it jumped, and may jump back
}

// reading is one answer to "what time is it": about when it was received the server's clock stood at server. How much earlier
// it was looked at is known up to the time the answer took.
type reading struct {
	server         time.Time
	primary        string
	sent, received time.Time
}

// verdict is what a reading changed.
type verdict struct {
	paused string        // why a pause begins with this reading; empty: none does, or one went on already and is only prolonged
	step   time.Duration // how far the clock jumped; 0: within the limit
}

func newWatch(lease, beat time.Duration) *watch { return &watch{lease: lease, beat: beat} }

// observe takes one reading in.
func (w *watch) observe(r reading) verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	var v verdict
	last := w.last
	w.last = r
	if last.received.IsZero() {
		w.since = r.received
		return v
	}
	v.step = jump(last, r)
	switch {
	case v.step != 0:
		v.paused = "clock stepped"
	case r.primary != last.primary:
		v.paused = "another primary"
	case r.received.Sub(last.received) > w.beat:
		v.paused = "no answer"
	}
	if v.step != 0 {
		w.steadyAt = r.received.Add(w.lease)
	}
	if v.paused != "" {
		prolonged := r.received.Before(w.resumeAt)
		w.pause(r.received, v.paused)
		if prolonged {
			v.paused = ""
		}
	}
	return v
}

// jump returns how far the server's clock moved beyond the time that passed between the two readings, or 0 when that is within
// the limit or can be explained by how long the answers took.
func jump(a, b reading) time.Duration {
	step := b.server.Sub(a.server) - b.received.Sub(a.received)
	if step.Abs() <= stepLimit+a.doubt()+b.doubt() {
		return 0
	}
	return step
}

func (r reading) doubt() time.Duration { return r.received.Sub(r.sent) }

func (w *watch) pause(from time.Time, why string) {
	w.since = from
	w.resumeAt = from.Add(w.lease)
	w.why = why
}

// takeOver is asked once by a new leader, after the first reading, and tells whether it pauses. It may go on at once if it
// has itself watched a whole lease without a break, or if the leader before it saw the database well a moment ago.
func (w *watch) takeOver(left string) (paused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, ok := readNote(left)
	age := w.last.server.Sub(seen.At)
	fresh := ok && seen.Primary == w.last.primary && age > -stepLimit && age <= w.lease/2
	if !fresh && w.last.received.Sub(w.since) < w.lease && w.last.received.After(w.resumeAt) {
		w.pause(w.last.received, "new leader")
	}
	return w.last.received.Before(w.resumeAt)
}

// now returns the server's time, never later than it is, and whether leases may be judged by it at the monotonic time at.
func (w *watch) now(at time.Time) (server time.Time, trusted bool) {
	server, known := w.server(at)
	return server, known && w.status(at) == ""
}

// steady returns the same, and whether what expires by the clock alone may be ended at the monotonic time at: nobody could have
// prevented that by a beat, so it does not matter who leads, or since when the database is within reach.
func (w *watch) steady(at time.Time) (server time.Time, ok bool) {
	server, known := w.server(at)
	w.mu.Lock()
	defer w.mu.Unlock()
	return server, known && !at.Before(w.steadyAt)
}

// server returns the server's time, never later than it is; false when the last answer is too old to tell.
func (w *watch) server(at time.Time) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.silent(at) {
		return time.Time{}, false
	}
	return w.last.server.Add(at.Sub(w.last.received) - w.last.doubt()), true
}

// silent must be called with the lock held.
func (w *watch) silent(at time.Time) bool {
	return w.last.received.IsZero() || at.Sub(w.last.received) > w.beat
}

// status says why nothing is revived at the monotonic time at; empty: sweeps go on.
func (w *watch) status(at time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.silent(at):
		return "no answer"
	case at.Before(w.resumeAt):
		return w.why
	}
	return ""
}

// note is what a leader leaves in its lock for a successor.
type note struct {
	At      time.Time `json:"at"` // the server's time at the last answer
	Primary string    `json:"primary"`
}

// leave returns the note. A leader that is itself in a pause leaves none: its successor has no more reason to believe.
func (w *watch) leave(at time.Time) string {
	if w.status(at) != "" {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	text, err := json.Marshal(note{At: w.last.server, Primary: w.last.primary})
	if err != nil {
		return ""
	}
	return string(text)
}

func readNote(text string) (note, bool) {
	var n note
	err := json.Unmarshal([]byte(text), &n)
	return n, err == nil && !n.At.IsZero()
}
