package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// world is a database with a change stream and an event stream, in memory. A fault can be put before any of its calls.
type world struct {
	t  *testing.T
	mu sync.Mutex

	changes []task.Observed // since the beginning
	base    int             // the change stream reaches back to here
	tasks   map[string]*task.Task
	dead    map[string]task.DeadTask
	streams bool // the database has change streams

	token []byte
	at    time.Time
	epoch int64

	creation  int          // of AX_EVENT
	published []events.Msg // in the present AX_EVENT, copies left out as the server does
	all       map[string][]byte
	away      bool // NATS

	calls  int
	fault  func(call int, what string) error
	reads  int  // of the change stream
	silent bool // its place stands still
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, tasks: map[string]*task.Task{}, dead: map[string]task.DeadTask{}, all: map[string][]byte{}, streams: true, creation: 1,
	}
}

// unreadable stands where a change should repeat what it belongs to.
const unreadable = "{"

var errFault = errors.New("connection lost")

func (w *world) try(what string) error {
	w.calls++
	if w.fault != nil {
		return w.fault(w.calls, what)
	}
	return nil
}

// move changes a task as the store does: history, change and stream in one.
func (w *world) move(id string, to task.State, reason task.Reason, set ...func(*task.Task)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moveLocked(id, to, reason, set...)
}

func (w *world) moveLocked(id string, to task.State, reason task.Reason, set ...func(*task.Task)) {
	t := w.tasks[id]
	if t == nil {
		t = &task.Task{ID: id, Type: "email", Channel: task.ChannelStable, Priority: 5, MaxAttempts: 3, OnExhausted: task.DeadLetter}
		w.tasks[id] = t
	}
	before := t.State
	t.State = to
	t.Seq++
	var failed *task.Error
	for _, f := range set {
		f(t)
	}
	if len(t.History) == 0 || t.LastError != nil && to != task.Running && before == task.Running {
		failed = t.LastError
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	if to == task.Running && before != task.Running {
		t.Attempts++
		t.Claim = "claim" + strconv.Itoa(t.Attempts)
	}
	if to.Terminal() {
		t.FinishedAt = now
	}
	c := task.Change{
		Seq: t.Seq, Type: t.Type, Channel: t.Channel, Priority: t.Priority, From: before, To: to, Reason: reason, Attempt: t.Attempts,
		Claim: t.Claim, At: now, ScheduledAt: t.ScheduledAt, By: "test", Echo: t.Echo,
	}
	t.Change = c.String()
	t.History = append(t.History, task.Entry{
		Seq: c.Seq, At: now, From: before, To: to, Reason: reason, By: c.By, Attempt: c.Attempt, Claim: c.Claim, Error: failed,
	})
	t.History = t.History[max(0, len(t.History)-task.MaxHistory):]
	o := task.Observed{ID: id, Change: c, Error: failed}
	if to == task.Success {
		o.Result = t.Result
	}
	w.changes = append(w.changes, o)
}

// live takes a task through a whole life that ends well or badly.
func (w *world) live(id string, succeeds bool) {
	w.move(id, task.Pending, task.ReasonSubmitted)
	w.move(id, task.Running, task.ReasonClaimed)
	if succeeds {
		w.move(id, task.Success, task.ReasonSucceeded, func(t *task.Task) { t.Result = json.RawMessage(`{"sent":true}`) })
		return
	}
	w.move(id, task.Pending, task.ReasonRetry, fails("first"))
	w.move(id, task.Running, task.ReasonClaimed)
	w.move(id, task.Failed, task.ReasonExhausted, fails("second"))
}

func fails(message string) func(*task.Task) {
	return func(t *task.Task) {
		t.LastError = &task.Error{Message: message, Code: "smtp", Cause: task.ReasonError, Stack: "secret"}
	}
}

func (w *world) Now() (time.Time, time.Duration, error) { return time.Now(), time.Millisecond, nil }

func (w *world) LoadCursor(context.Context, string) ([]byte, time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.token, w.at, w.try("load cursor")
}

func (w *world) SaveCursor(ctx context.Context, _ string, token []byte, at time.Time, epoch int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(ctx.Err(), w.try("save cursor")); err != nil {
		return err
	}
	if epoch < w.epoch {
		return task.ErrNotLeader
	}
	w.token, w.at, w.epoch = token, at, epoch
	if token != nil {
		for _, o := range w.changes[:w.placeOf(token)] {
			w.requirePublished(o)
		}
	}
	return nil
}

// requirePublished is what must hold for everything before a stored place: its event is out and its dead letter written.
func (w *world) requirePublished(o task.Observed) {
	_, published := w.all[messageID(o.ID, o.Change.Seq)]
	published = published || o.Change.Echo == unreadable
	for id := range w.all { // or announced as a gap
		var gap int64
		if rest, ok := strings.CutPrefix(id, o.ID+":"); ok && !published {
			_, err := fmt.Sscanf(rest, "%d:gap", &gap)
			published = err == nil && o.Change.Seq <= gap
		}
	}
	require.True(w.t, published, "the place was stored before event %s:%d was acknowledged", o.ID, o.Change.Seq)
	if died(o.Change) && w.tasks[o.ID].OnExhausted != task.Ignore {
		require.Contains(w.t, w.dead, o.ID, "the place was stored before the dead letter")
	}
}

type stream struct {
	*world
	place, looks int
}

// placeOf reads what Token wrote.
func (w *world) placeOf(token []byte) (place int) {
	_, err := fmt.Sscanf(string(token), "%d.", &place)
	require.NoError(w.t, err)
	return place
}

func (w *world) OpenStream(_ context.Context, token []byte) (Stream, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.try("open stream"); err != nil {
		return nil, err
	}
	if !w.streams {
		return nil, task.ErrNoChangeStream
	}
	s := &stream{world: w, place: len(w.changes)}
	if token != nil {
		if s.place = w.placeOf(token); s.place < w.base {
			return nil, task.ErrHistoryLost
		}
	}
	return s, nil
}

func (s *stream) Next(ctx context.Context) ([]task.Observed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.try("read stream"); err != nil {
		return nil, err
	}
	if s.place == len(s.changes) {
		s.mu.Unlock()
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		s.mu.Lock()
	}
	if s.place < s.base {
		return nil, task.ErrHistoryLost
	}
	s.reads++
	end := min(s.place+7, len(s.changes))
	batch := slices.Clone(s.changes[s.place:end])
	s.place = end
	return batch, ctx.Err()
}

// Token names the place, and how often it was looked at: like a server's, it moves on while nothing happens.
func (s *stream) Token() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.silent {
		s.looks++
	}
	return fmt.Appendf(nil, "%d.%d", s.place, s.looks)
}
func (s *stream) Close() {}

func (w *world) EachLive(_ context.Context, visit func([]*task.Task) error) error {
	live, err := w.find("read live tasks", math.MaxInt, func(t *task.Task) bool { return !t.State.Terminal() },
		func(a, b *task.Task) int { return strings.Compare(a.ID, b.ID) })
	for batch := range slices.Chunk(live, 100) {
		err = errors.Join(err, visit(batch))
	}
	return err
}

func (w *world) FinishedBetween(_ context.Context, from, to time.Time, limit int) ([]*task.Task, error) {
	what := "read earlier ended tasks"
	if to.After(time.Now()) {
		what = "read just ended tasks"
	}
	return w.find(what, limit, func(t *task.Task) bool {
		return t.State.Terminal() && !t.FinishedAt.Before(from) && t.FinishedAt.Before(to)
	}, func(a, b *task.Task) int { return a.FinishedAt.Compare(b.FinishedAt) })
}

func (w *world) find(what string, limit int, keep func(*task.Task) bool, order func(a, b *task.Task) int) ([]*task.Task, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*task.Task
	for _, t := range w.tasks {
		if keep(t) {
			c := *t
			c.History = slices.Clone(t.History)
			out = append(out, &c)
		}
	}
	slices.SortFunc(out, order)
	return out[:min(limit, len(out))], w.try(what)
}

func (w *world) Get(_ context.Context, id string) (*task.Task, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.try("get"); err != nil {
		return nil, err
	}
	if t, ok := w.tasks[id]; ok {
		c := *t
		c.History = slices.Clone(t.History)
		return &c, nil
	}
	return nil, task.ErrNotFound
}

func (w *world) UpsertDeadLetters(ctx context.Context, dead []task.DeadTask) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(ctx.Err(), w.try("write dead letters")); err != nil {
		return err
	}
	for _, d := range dead {
		if _, there := w.dead[d.ID]; !there {
			w.dead[d.ID] = d
		}
	}
	return nil
}

func (w *world) PublishInOrder(ctx context.Context, msgs []events.Msg) error {
	for _, m := range msgs {
		for {
			w.mu.Lock()
			away := w.away
			w.mu.Unlock()
			if !away {
				break
			}
			if !pause(ctx, 100*time.Millisecond) {
				return ctx.Err()
			}
		}
		w.mu.Lock()
		if err := w.try("publish"); err != nil {
			w.mu.Unlock()
			return err
		}
		if body, there := w.all[m.ID]; there {
			require.JSONEq(w.t, withoutStart(body), withoutStart(m.Data), "two messages of one id say different things")
		}
		w.all[m.ID] = m.Data
		if !slices.ContainsFunc(w.published, func(p events.Msg) bool { return p.ID == m.ID }) {
			w.published = append(w.published, m)
		}
		w.mu.Unlock()
	}
	return nil
}

// withoutStart drops what an event made from history may lack: the start time that an older change named.
func withoutStart(body []byte) string {
	var e map[string]any
	if json.Unmarshal(body, &e) != nil {
		return string(body)
	}
	delete(e, "scheduledAt")
	out, _ := json.Marshal(e)
	return string(out)
}

func (w *world) EventStream(context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return "", errors.New("no responders")
	}
	return fmt.Sprint("creation ", w.creation), w.try("look at the event stream")
}

// wipe loses all events, as when the store of NATS is lost and its streams are made again.
func (w *world) wipe() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.creation++
	w.published = nil
}

// place is the stored place in the change stream.
func (w *world) place() (place int, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.placeOf(w.token), w.at
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// requireGapless asserts that a subscriber who ignores seq <= the last it saw has every change of every task, in order.
func (w *world) requireGapless() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	last := map[string]int64{}
	for _, m := range w.published {
		e, err := events.DecodeEvent(m.Data)
		require.NoError(w.t, err)
		if e.Seq <= last[e.ID] {
			continue
		}
		if e.Gap != nil {
			require.Equal(w.t, last[e.ID]+1, e.Gap.FromSeq)
		} else {
			require.Equal(w.t, last[e.ID]+1, e.Seq, "task %s", e.ID)
		}
		last[e.ID] = e.Seq
	}
	for id, t := range w.tasks {
		require.Equal(w.t, t.Seq, last[id], "task %s", id)
	}
}

// leader leads until the returned function is called, which gives Lead's error.
func (w *world) leader(note string, epoch int64) (n *Notifier, stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	n = New(Config{}, w, w, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- n.Lead(ctx, task.Lease{Held: true, Epoch: epoch, Note: note}) }()
	once := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	w.t.Cleanup(func() { _ = once() })
	return n, once
}
