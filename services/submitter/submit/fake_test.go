package submit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// The tests of the logic alone run in bubbles of testing/synctest, on a store and a stream in memory, so that outages of
// minutes take no time. What the real ones do is tested beside them.

var errDown = errors.New("no server answers")

// memory is a store whose inserts can be held up and made to fail.
type memory struct {
	mu      sync.Mutex
	stored  map[string]string // id -> hash
	batches []int             // sizes, in the order of their begin
	running int
	most    int                                                 // inserts at the same time
	before  func(ctx context.Context, tasks []*task.Task) error // called unlocked, before anything is stored
	down    bool                                                // Ping, Now and Insert fail
	poison  string                                              // the one id that no insert takes
}

func newMemory() *memory { return &memory{stored: map[string]string{}} }

func (m *memory) Insert(ctx context.Context, tasks []*task.Task) ([]task.InsertStatus, error) {
	m.mu.Lock()
	m.batches = append(m.batches, len(tasks))
	m.running++
	m.most = max(m.most, m.running)
	before := m.before
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.running--
		m.mu.Unlock()
	}()
	if before != nil {
		if err := before(ctx, tasks); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	status := make([]task.InsertStatus, len(tasks))
	for i, t := range tasks {
		switch hash, there := m.stored[t.ID]; {
		case t.ID == m.poison:
			return nil, fmt.Errorf("task %s cannot be encoded", t.ID) // and the whole command with it
		case !there:
			m.stored[t.ID] = t.SubmitHash
			status[i] = task.Inserted
		case hash == t.SubmitHash:
			status[i] = task.Duplicate
		default:
			status[i] = task.Conflict
		}
	}
	return status, nil
}

func (m *memory) Now() (time.Time, time.Duration, error) {
	if m.Ping(context.Background()) != nil {
		return time.Time{}, 0, task.ErrClock
	}
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), time.Millisecond, nil
}

func (m *memory) Ping(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errDown
	}
	return nil
}

func (m *memory) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// stream is a source that delivers what it is given, and remembers what became of it.
type stream struct {
	ch     chan events.Message
	closed chan struct{}

	mu      sync.Mutex
	next    uint64
	fetches int
	acked   map[uint64]int
	naked   map[uint64][]time.Duration
	renewed map[uint64]int
}

func newStream() *stream {
	return &stream{ch: make(chan events.Message, 10_000), closed: make(chan struct{}), acked: map[uint64]int{}, naked: map[uint64][]time.Duration{}, renewed: map[uint64]int{}}
}

func (s *stream) NextBatch(ctx context.Context, n int) ([]events.Message, error) {
	s.mu.Lock()
	s.fetches++
	s.mu.Unlock()
	var batch []events.Message
	select {
	case m := <-s.ch:
		batch = append(batch, m)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.closed:
		return nil, errors.New("closed")
	}
	for len(batch) < n {
		select {
		case m := <-s.ch:
			batch = append(batch, m)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// closing is how long Close takes; that of a real stream takes up to a second.
const closing = 100 * time.Millisecond

func (s *stream) Close() {
	close(s.closed)
	<-time.After(closing)
}

// publish delivers a body on ax.submit.email and returns its sequence.
func (s *stream) publish(body string) uint64 { return s.publishOn("ax.submit.email", body, nil) }

func (s *stream) publishOn(subject, body string, header events.Header) uint64 {
	s.mu.Lock()
	s.next++
	seq := s.next
	s.mu.Unlock()
	s.ch <- events.Message{Subject: subject, Data: []byte(body), Header: header, Sequence: seq, Delivered: 1,
		Timestamp: time.Unix(1_772_000_000, int64(seq)).UTC(), Acker: &fate{s, seq}}
	return seq
}

func (s *stream) ackedOnce(seqs ...uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seq := range seqs {
		if s.acked[seq] != 1 {
			return false
		}
	}
	return true
}

func (s *stream) renewals(seq uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed[seq]
}

func (s *stream) counts() (acked, naked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.acked), len(s.naked)
}

type fate struct {
	s   *stream
	seq uint64
}

func (f *fate) note(note func()) error {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	note()
	return nil
}

func (f *fate) Ack() error { return f.note(func() { f.s.acked[f.seq]++ }) }
func (f *fate) NakWithDelay(d time.Duration) error {
	return f.note(func() { f.s.naked[f.seq] = append(f.s.naked[f.seq], d) })
}
func (f *fate) InProgress() error { return f.note(func() { f.s.renewed[f.seq]++ }) }
func (f *fate) Term(string) error { return errors.New("nothing is ever terminated") }

// paper is a bus that keeps what was said.
type paper struct {
	mu      sync.Mutex
	dead    []events.Msg
	answers []events.Answer
	refuse  func(events.Msg) error
}

func (p *paper) Publish(_ context.Context, msgs []events.Msg) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(msgs))
	for i, m := range msgs {
		if p.refuse != nil {
			errs[i] = p.refuse(m)
		}
		if errs[i] == nil {
			p.dead = append(p.dead, m)
		}
	}
	return errs
}

func (p *paper) Answer(_ string, a events.Answer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = append(p.answers, a)
	return nil
}

func (p *paper) PublishCancel(events.Cancel) error { return nil }

type bench struct {
	*Submitter
	store  *memory
	stream *stream
	bus    *paper
	warned *strings.Builder // to be read after stop
	stop   func()           // and waits
}

// start runs a submitter on memory; it is stopped at the end of the test.
func start(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{store: newMemory(), stream: newStream(), bus: &paper{}, warned: &strings.Builder{}}
	b.Submitter = New(cfg, b.store, b.stream, b.bus, prometheus.NewRegistry(),
		slog.New(slog.NewTextHandler(b.warned, &slog.HandlerOptions{Level: slog.LevelWarn}))) // the handler writes one line after the other
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(b.stop)
	return b
}
