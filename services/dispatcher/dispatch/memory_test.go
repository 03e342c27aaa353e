package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// memory is a store and a bus for tests of the logic alone, where time is the test's (testing/synctest). What the real
// ones do is tested over the wire.
type memory struct {
	mu      sync.Mutex
	tasks   map[string]task.Candidate // pending
	offset  time.Duration             // the database's clock against the process's
	noClock bool
	token   []byte
	saved   []byte
	epoch   int64
	changes chan []task.Observed
	open    error // what opening the stream answers
	opens   int
	made    string // the stream of signals
	readErr error
	reads   int
	hasRead func(task.Window) // after a read of a lane, before its result is handed over

	signals []signal
	publish func(signal) error
	stored  map[Lane]int
	noBody  map[Lane]bool
}

func newMemory() *memory {
	return &memory{
		tasks: make(map[string]task.Candidate), changes: make(chan []task.Observed, 1_000), made: "first",
		stored: make(map[Lane]int), noBody: make(map[Lane]bool),
	}
}

func (m *memory) Now() (time.Time, time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.noClock {
		return time.Time{}, 0, task.ErrClock
	}
	return time.Now().Add(m.offset).UTC(), time.Millisecond, nil
}

// insert stores a pending task as the submitter would, and tells the stream unless quiet.
func (m *memory) insert(id string, priority int, scheduled time.Time, quiet bool) task.Candidate {
	c := task.Candidate{ID: id, Type: "email", Channel: task.ChannelStable, Priority: priority, ScheduledAt: scheduled.Truncate(time.Millisecond), Seq: 1}
	m.put(c, "", quiet)
	return c
}

func (m *memory) put(c task.Candidate, from task.State, quiet bool) {
	now, _, _ := m.Now()
	m.mu.Lock()
	m.tasks[c.ID] = c
	m.mu.Unlock()
	if !quiet {
		m.changes <- []task.Observed{{ID: c.ID, Change: task.Change{
			Seq: c.Seq, Type: c.Type, Channel: c.Channel, Priority: c.Priority, From: from, To: task.Pending, At: now, ScheduledAt: c.ScheduledAt, Attempt: c.Attempts,
		}}}
	}
}

// claim makes a task running, and tells the stream unless quiet. It reports whether it was pending.
func (m *memory) claim(id string, quiet bool) bool {
	now, _, _ := m.Now()
	m.mu.Lock()
	c, ok := m.tasks[id]
	delete(m.tasks, id)
	m.mu.Unlock()
	if ok && !quiet {
		m.changes <- []task.Observed{{ID: id, Change: task.Change{
			Seq: c.Seq + 1, Type: c.Type, Channel: c.Channel, Priority: c.Priority, From: task.Pending, To: task.Running, At: now,
		}}}
	}
	return ok
}

// work claims all that was signalled since the last call, in order, as workers would, and returns the ids.
func (m *memory) work(quiet bool) []string {
	var ids []string
	for _, s := range m.taken() {
		for _, t := range s.tasks {
			if m.claim(t.ID, quiet) {
				ids = append(ids, t.ID)
			}
		}
	}
	return ids
}

// workSome is work for the first n signals in the bus only.
func (m *memory) workSome(n int, quiet bool) (ids []string) {
	m.mu.Lock()
	n = min(n, len(m.signals))
	some := m.signals[:n:n]
	m.signals = m.signals[n:]
	for _, s := range some {
		m.stored[s.lane]--
	}
	m.mu.Unlock()
	for _, id := range idsOf(some) {
		if m.claim(id, quiet) {
			ids = append(ids, id)
		}
	}
	return ids
}

// taken empties the bus.
func (m *memory) taken() []signal {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.signals
	m.signals = nil
	clear(m.stored)
	return taken
}

func (m *memory) sorted(keep func(task.Candidate) bool, limit int) []task.Candidate {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	var found []task.Candidate
	for _, c := range m.tasks {
		if keep(c) {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(x, y task.Candidate) int {
		x.Priority, y.Priority = 0, 0
		if positionOf(&x).before(positionOf(&y)) {
			return -1
		}
		return 1
	})
	return found[:min(len(found), limit)]
}

func (m *memory) Candidates(_ context.Context, w task.Window) ([]task.Candidate, error) {
	if err := m.unreadable(); err != nil {
		return nil, err
	}
	page := m.sorted(func(c task.Candidate) bool {
		return c.Type == w.Type && c.Channel == w.Channel && c.Priority == w.Priority && !c.ScheduledAt.Before(w.From) && c.ScheduledAt.Before(w.To)
	}, w.Limit)
	if m.hasRead != nil {
		m.hasRead(w)
	}
	return page, nil
}

func (m *memory) Front(_ context.Context, taskType, channel string, priority int) (time.Time, bool, error) {
	first := m.sorted(func(c task.Candidate) bool {
		return c.Type == taskType && c.Channel == channel && c.Priority == priority
	}, 1)
	if len(first) == 0 {
		return time.Time{}, false, m.unreadable()
	}
	return first[0].ScheduledAt, true, m.unreadable()
}

func (m *memory) unreadable() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readErr
}

func (m *memory) Due(_ context.Context, from, to time.Time, limit int) ([]task.Candidate, error) {
	if err := m.unreadable(); err != nil {
		return nil, err
	}
	return m.sorted(func(c task.Candidate) bool { return !c.ScheduledAt.Before(from) && c.ScheduledAt.Before(to) }, limit), nil
}

func (m *memory) OpenStream(_ context.Context, token []byte) (Stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opens++
	if m.open != nil {
		return nil, m.open
	}
	if string(token) == "poison" {
		return nil, errors.New("cannot read the token")
	}
	return (*memoryStream)(m), nil
}

func (m *memory) LoadCursor(context.Context, string) ([]byte, time.Time, error) {
	return m.saved, time.Now(), nil
}

func (m *memory) SaveCursor(_ context.Context, _ string, token []byte, _ time.Time, epoch int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if epoch < m.epoch {
		return task.ErrNotLeader
	}
	m.saved, m.epoch = token, epoch
	return nil
}

func (m *memory) Slots(context.Context) (map[string]int, error) { return nil, nil }

func (m *memory) SignalStream(context.Context) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made, nil
}

type memoryStream memory

func (s *memoryStream) Next(ctx context.Context) ([]task.Observed, error) {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	var batch []task.Observed
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	case batch = <-s.changes:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil {
		return nil, s.open
	}
	s.token = append(slices.Clone(s.token[:0]), []byte(time.Now().String())...)
	return batch, nil
}

func (s *memoryStream) Token() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.token)
}

func (s *memoryStream) Close() {}

func (m *memory) Publish(_ context.Context, msgs []events.Msg) []error {
	signals := make([]signal, len(msgs))
	for i, msg := range msgs {
		part := strings.Split(msg.Subject, ".")
		var body events.Signal
		if err := json.Unmarshal(msg.Data, &body); err != nil {
			panic(err)
		}
		signals[i] = signal{lane: Lane{part[2], part[3], task.Lane(part[4])}, tasks: body.Tasks}
	}
	return m.accept(signals)
}

func (m *memory) accept(signals []signal) []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := make([]error, len(signals))
	for i, s := range signals {
		if m.publish != nil {
			errs[i] = m.publish(s)
		}
		if errs[i] == nil {
			m.signals = append(m.signals, s)
			m.stored[s.lane]++
		}
	}
	return errs
}

func (m *memory) LaneInfo(_ context.Context, taskType, channel, lane string) (events.LaneInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := Lane{taskType, channel, task.Lane(lane)}
	return events.LaneInfo{Exists: !m.noBody[l], Pending: uint64(m.stored[l])}, nil
}

// ids are the tasks of all signals in the bus, in order.
func (m *memory) ids() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return idsOf(m.signals)
}

func idsOf(signals []signal) []string {
	var ids []string
	for _, s := range signals {
		for _, t := range s.tasks {
			ids = append(ids, t.ID)
		}
	}
	return ids
}

var errAway = errors.New("the bus is away")

func registry() *prometheus.Registry { return prometheus.NewRegistry() }

func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// lead starts a term on the memory and returns its end.
func (m *memory) lead(t *testing.T, epoch int64) (d *Dispatcher, stop func() error) {
	t.Helper()
	d, err := New(Options{Store: m, Bus: m, Log: quietLog(), Registry: registry()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Lead(ctx, task.Lease{Name: "dispatcher", Held: true, Epoch: epoch}) }()
	return d, func() error {
		cancel()
		return <-ended
	}
}
