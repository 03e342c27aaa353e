package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

var errFault = errors.New("connection lost")

// fault is what happens to one call of the fake store.
type fault struct {
	delay time.Duration // before anything else
	err   error         // the answer; nothing is written, unless
	lost  bool          // it is written, and the answer is lost; or
	late  time.Duration // it is written so long after the failure was reported
}

// fakeStore is a database in memory with the guards of the real one. It exists to lose answers and to be slow at chosen
// moments, in a bubble whose clock jumps; what it does right is tested with the real one.
type fakeStore struct {
	mu     sync.Mutex
	tasks  map[string]*task.Task
	calls  []call
	faults func(op string, n int) fault // n counts calls of the operation, from 1
	count  map[string]int
	flying map[string]int // calls under way, by operation
	peak   map[string]int
	once   map[string]*onceEntry
	beaten []task.WorkerInfo
	roster []task.WorkerInfo // what stands in the registry at the start
	gone   bool              // the worker has left the registry
}

// call is one call as it arrived.
type call struct {
	op    string
	at    time.Time
	ids   []string
	claim string
	kinds []task.OutcomeKind
}

type onceEntry struct {
	owner string
	done  bool
	value json.RawMessage
	until time.Time
}

func newFakeStore() *fakeStore {
	return &fakeStore{tasks: make(map[string]*task.Task), count: make(map[string]int), flying: make(map[string]int),
		peak: make(map[string]int), once: make(map[string]*onceEntry), faults: func(string, int) fault { return fault{} }}
}

// do runs one operation under its fault.
func (s *fakeStore) do(ctx context.Context, c call, apply func()) error {
	s.mu.Lock()
	s.count[c.op]++
	s.flying[c.op]++
	s.peak[c.op] = max(s.peak[c.op], s.flying[c.op])
	c.at = time.Now()
	s.calls = append(s.calls, c)
	f := s.faults(c.op, s.count[c.op])
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.flying[c.op]--
		s.mu.Unlock()
	}()
	if f.delay > 0 && !pause(ctx, f.delay) {
		return ctx.Err()
	}
	locked := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		apply()
	}
	switch {
	case f.late > 0:
		time.AfterFunc(f.late, locked)
	case f.err == nil || f.lost:
		locked()
	}
	if f.err == nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return f.err
}

// during returns faults for a stretch of time, from now.
func during(after, length time.Duration, ops ...string) func(string, int) fault {
	from := time.Now().Add(after)
	until := from.Add(length)
	return func(op string, _ int) fault {
		if now := time.Now(); !now.Before(from) && now.Before(until) && (len(ops) == 0 || slices.Contains(ops, op)) {
			return fault{err: errFault}
		}
		return fault{}
	}
}

func (s *fakeStore) add(taskType string, n int, change ...func(*task.Task)) []*task.Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	var added []*task.Task
	for range n {
		t := &task.Task{ID: fmt.Sprintf("t-%05d", len(s.tasks)+1), Type: taskType, State: task.Pending, Channel: task.ChannelStable, Priority: task.DefaultPriority,
			MaxAttempts: 3, MaxLosses: 3, Timeout: 30 * time.Minute, Retry: task.DefaultRetry, ScheduledAt: time.Now(), CreatedAt: time.Now()}
		for _, c := range change {
			c(t)
		}
		s.tasks[t.ID] = t
		added = append(added, t)
	}
	return added
}

// get is a copy of a task.
func (s *fakeStore) get(id string) task.Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.tasks[id]
}

// callsOf lists the calls of an operation.
func (s *fakeStore) callsOf(op string) (list []call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.op == op {
			list = append(list, c)
		}
	}
	return list
}

// reap ends executions whose leases are over, as the reaper does.
func (s *fakeStore) reap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		if t.State == task.Running && time.Now().After(t.LeaseUntil) {
			t.State = task.Pending
			t.Losses++
			s.record(t, task.Running, task.ReasonLeaseExpired, "reaper")
		}
	}
}

func (s *fakeStore) record(t *task.Task, from task.State, reason task.Reason, by string) {
	t.Seq++
	t.History = append(t.History, task.Entry{Seq: t.Seq, At: time.Now(), From: from, To: t.State, Reason: reason, By: by, Attempt: t.Attempts, Claim: t.Claim})
}

func (s *fakeStore) Now() (time.Time, time.Duration, error) { return time.Now(), time.Millisecond, nil }

func (s *fakeStore) Claim(ctx context.Context, r task.ClaimRequest) (won []*task.Task, err error) {
	err = s.do(ctx, call{op: "claim", ids: r.IDs, claim: r.Claim}, func() {
		for _, id := range r.IDs {
			if t := s.tasks[id]; t != nil && t.State == task.Pending && !t.ScheduledAt.After(time.Now()) {
				t.State, t.Claim, t.WorkerID, t.LeaseUntil = task.Running, r.Claim, r.Worker, time.Now().Add(r.Lease)
				t.Attempts++
				s.record(t, task.Pending, task.ReasonClaimed, r.Worker)
				c := *t
				won = append(won, &c)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w: %w", task.ErrUnknownOutcome, err)
	}
	return won, nil
}

func (s *fakeStore) Resolve(ctx context.Context, claim string, ids []string) (held []*task.Task, err error) {
	err = s.do(ctx, call{op: "resolve", ids: ids, claim: claim}, func() {
		for _, id := range ids {
			if t := s.tasks[id]; t != nil && t.State == task.Running && t.Claim == claim {
				c := *t
				held = append(held, &c)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

func (s *fakeStore) Heartbeat(ctx context.Context, r task.HeartbeatRequest) (result task.HeartbeatResult, err error) {
	var ids []string
	for _, o := range r.Owned {
		ids = append(ids, o.ID)
	}
	err = s.do(ctx, call{op: "heartbeat", ids: ids}, func() {
		for _, o := range r.Owned {
			switch t := s.tasks[o.ID]; {
			case t.State != task.Running || t.Claim != o.Claim:
				result.Lost = append(result.Lost, o)
			case !t.CancelRequestedAt.IsZero():
				result.Cancelled = append(result.Cancelled, o)
			default:
				t.LeaseUntil = time.Now().Add(r.Lease)
			}
		}
	})
	if err != nil {
		return task.HeartbeatResult{}, err
	}
	return result, nil
}

func (s *fakeStore) Finish(ctx context.Context, outcomes []task.Outcome) (answers []error, err error) {
	c := call{op: "finish"}
	for _, o := range outcomes {
		c.ids, c.kinds = append(c.ids, o.ID), append(c.kinds, o.Kind)
	}
	err = s.do(ctx, c, func() {
		answers = make([]error, len(outcomes))
		for i, o := range outcomes {
			t := s.tasks[o.ID]
			to, reason, delay := o.Decide()
			if t.State == task.Running && t.Claim == o.Claim {
				t.State, t.WorkerID, t.Result, t.LastError = to, "", o.Result, o.Error
				t.ScheduledAt = time.Now().Add(delay)
				if o.Kind == task.FailedAttempt {
					t.Failures++
				}
				s.record(t, task.Running, reason, o.Worker)
				continue
			}
			recorded := slices.ContainsFunc(t.History, func(e task.Entry) bool {
				return e.From == task.Running && e.Claim == o.Claim && e.By == o.Worker && e.Reason == reason
			})
			if !recorded {
				answers[i] = task.ErrLeaseLost
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("finish: %w: %w", task.ErrUnknownOutcome, err)
	}
	return answers, nil
}

func (s *fakeStore) Progress(ctx context.Context, o task.Owned, progress json.RawMessage) error {
	return s.do(ctx, call{op: "progress", ids: []string{o.ID}}, func() { s.tasks[o.ID].Progress = progress })
}

// pending lists the pending tasks that meet a condition, in order of scheduledAt, then id. The caller holds mu.
func (s *fakeStore) pending(meets func(*task.Task) bool) (list []task.Candidate) {
	for _, t := range s.tasks {
		if t.State == task.Pending && meets(t) {
			list = append(list, task.Candidate{ID: t.ID, Type: t.Type, Channel: t.Channel, Priority: t.Priority, ScheduledAt: t.ScheduledAt})
		}
	}
	slices.SortFunc(list, func(a, b task.Candidate) int {
		return cmp.Or(a.ScheduledAt.Compare(b.ScheduledAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func (s *fakeStore) Due(ctx context.Context, from, to time.Time, limit int) (list []task.Candidate, err error) {
	err = s.do(ctx, call{op: "due"}, func() {
		list = s.pending(func(t *task.Task) bool { return !t.ScheduledAt.Before(from) && t.ScheduledAt.Before(to) })
		list = list[:min(limit, len(list))]
	})
	return list, err
}

func (s *fakeStore) Front(ctx context.Context, taskType, channel string, priority int) (front time.Time, any bool, err error) {
	err = s.do(ctx, call{op: "front", ids: []string{taskType, fmt.Sprint(priority)}}, func() {
		list := s.pending(func(t *task.Task) bool {
			return t.Type == taskType && t.Channel == channel && t.Priority == priority
		})
		if any = len(list) > 0; any {
			front = list[0].ScheduledAt
		}
	})
	return front, any && err == nil, err
}

func (s *fakeStore) Candidates(ctx context.Context, w task.Window) (list []task.Candidate, err error) {
	err = s.do(ctx, call{op: "candidates"}, func() {
		list = s.pending(func(t *task.Task) bool {
			return t.Type == w.Type && t.Channel == w.Channel && t.Priority == w.Priority && !t.ScheduledAt.Before(w.From) && t.ScheduledAt.Before(w.To)
		})
		list = list[:min(w.Limit, len(list))]
	})
	return list, err
}

func (s *fakeStore) Workers(ctx context.Context) (list []task.WorkerInfo, err error) {
	err = s.do(ctx, call{op: "workers"}, func() { list = slices.Clone(s.roster) })
	return list, err
}

func (s *fakeStore) BeatWorker(ctx context.Context, w task.WorkerInfo) error {
	return s.do(ctx, call{op: "worker"}, func() { s.beaten = append(s.beaten, w) })
}

func (s *fakeStore) RemoveWorker(ctx context.Context, _ task.WorkerInfo) (bool, error) {
	return true, s.do(ctx, call{op: "remove"}, func() { s.gone = true })
}

func (s *fakeStore) BeginOnce(ctx context.Context, key, execution string, lease, _ time.Duration) (o task.Once, err error) {
	err = s.do(ctx, call{op: "begin once"}, func() {
		e := s.once[key]
		if e == nil || !e.done && (e.owner == execution || !time.Now().Before(e.until)) {
			e = &onceEntry{owner: execution, until: time.Now().Add(lease)}
			s.once[key] = e
		}
		o = task.Once{Done: e.done, Mine: !e.done && e.owner == execution, Value: e.value}
	})
	return o, err
}

func (s *fakeStore) CompleteOnce(ctx context.Context, key, execution string, value json.RawMessage, _ time.Duration) error {
	var answer error
	err := s.do(ctx, call{op: "complete once"}, func() {
		e := s.once[key]
		if e == nil || e.owner != execution {
			answer = task.ErrLeaseLost
			return
		}
		e.done, e.value = true, value
	})
	return cmp.Or(err, answer)
}

func (s *fakeStore) AbandonOnce(ctx context.Context, key, execution string) error {
	return s.do(ctx, call{op: "abandon once"}, func() {
		if e := s.once[key]; e != nil && e.owner == execution && !e.done {
			delete(s.once, key)
		}
	})
}

// fakeBus is a NATS in memory: one queue a lane, no redelivery by time.
type fakeBus struct {
	mu     sync.Mutex
	lanes  map[string]*fakeLane
	cancel func(events.Cancel)
	err    error // of each fetch and publish
}

type fakeLane struct {
	bus      *fakeBus
	subject  string
	queue    []*fakeMessage
	asked    int
	arrivals chan events.Message
	fetched  []int
}

// fakeMessage counts what was said about it.
type fakeMessage struct {
	lane                   *fakeLane
	data                   []byte
	acks, naks, extensions int
	termed                 string
}

func (m *fakeMessage) Ack() error               { return m.note(func() { m.acks++ }) }
func (m *fakeMessage) InProgress() error        { return m.note(func() { m.extensions++ }) }
func (m *fakeMessage) Term(reason string) error { return m.note(func() { m.termed = reason }) }
func (m *fakeMessage) NakWithDelay(time.Duration) error {
	return m.note(func() {
		m.naks++
		m.lane.deliver(m)
	})
}

// heard is how often each was said about the message.
func (m *fakeMessage) heard() (acks, naks, extensions int) {
	m.lane.bus.mu.Lock()
	defer m.lane.bus.mu.Unlock()
	return m.acks, m.naks, m.extensions
}

func (m *fakeMessage) note(what func()) error {
	m.lane.bus.mu.Lock()
	defer m.lane.bus.mu.Unlock()
	what()
	return nil
}

func newFakeBus() *fakeBus { return &fakeBus{lanes: make(map[string]*fakeLane)} }

func (b *fakeBus) Lane(taskType, channel, lane string) laneSource {
	return b.lane(events.SubjectWork(taskType, channel, lane))
}

func (b *fakeBus) lane(subject string) *fakeLane {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lanes[subject]
	if l == nil {
		l = &fakeLane{bus: b, subject: subject, arrivals: make(chan events.Message, maxListen)}
		b.lanes[subject] = l
	}
	return l
}

// signal puts a message for tasks into their lane.
func (b *fakeBus) signal(tasks ...*task.Task) *fakeMessage {
	s := events.Signal{}
	for _, t := range tasks {
		s.Tasks = append(s.Tasks, events.SignalTask{ID: t.ID, Seq: t.Seq, At: t.ScheduledAt.UnixMilli()})
	}
	return b.put(events.SubjectWork(tasks[0].Type, tasks[0].Channel, string(tasks[0].Lane())), events.EncodeSignal(s))
}

func (b *fakeBus) put(subject string, data []byte) *fakeMessage {
	l := b.lane(subject)
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &fakeMessage{lane: l, data: data}
	l.deliver(m)
	return m
}

// deliver gives a message to the one who asked for it, else it waits. The caller holds the lock of the bus.
func (l *fakeLane) deliver(m *fakeMessage) {
	if l.asked > 0 {
		l.asked--
		l.arrivals <- events.Message{Subject: l.subject, Data: m.data, Acker: m}
	} else {
		l.queue = append(l.queue, m)
	}
}

// waiting lists the messages that nobody has fetched.
func (l *fakeLane) waiting() []*fakeMessage {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	return slices.Clone(l.queue)
}

// fail has each publish and fetch fail from now on.
func (b *fakeBus) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *fakeBus) Signal(_ context.Context, subject string, s events.Signal) error {
	b.mu.Lock()
	err := b.err
	b.mu.Unlock()
	if err != nil {
		return err
	}
	b.put(subject, events.EncodeSignal(s))
	return nil
}

func (b *fakeBus) SubscribeCancel(fn func(events.Cancel)) (func(), error) {
	b.cancel = fn
	return func() {}, nil
}

func (b *fakeBus) Close() {}

func (l *fakeLane) FetchNoWait(_ context.Context, n int) (got []events.Message, err error) {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	l.fetched = append(l.fetched, n)
	for _, m := range l.queue[:min(n, len(l.queue))] {
		got = append(got, events.Message{Subject: l.subject, Data: m.data, Acker: m})
	}
	l.queue = l.queue[len(got):]
	return got, l.bus.err
}

func (l *fakeLane) Listen(n int) {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	for ; n > 0 && len(l.queue) > 0; n-- {
		m := l.queue[0]
		l.queue = l.queue[1:]
		l.arrivals <- events.Message{Subject: l.subject, Data: m.data, Acker: m}
	}
	l.asked = n
}

func (l *fakeLane) Asking() bool {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	return l.asked > 0
}

func (l *fakeLane) Arrivals() <-chan events.Message { return l.arrivals }
func (l *fakeLane) Close()                          {}

// bench is an engine on fakes, in a bubble.
type bench struct {
	*engine
	store *fakeStore
	bus   *fakeBus
	stop  func() error
}

// startEngine starts an engine with the default lease and beat. It must be stopped before the bubble ends.
func startEngine(t *testing.T, s *fakeStore, handlers map[string]Handler, change ...func(*Options)) *bench {
	o := Options{MongoURI: "mongodb://fake", Log: testLog(t)}
	for _, c := range change {
		c(&o)
	}
	w, err := New(o)
	require.NoError(t, err)
	for name, h := range handlers {
		HandleFunc(w, name, h)
	}
	return start(t, w, s)
}

func start(t *testing.T, w *Worker, s *fakeStore) *bench {
	kinds, err := w.begin()
	require.NoError(t, err)
	m, err := newMetrics(w.opts.Registerer)
	require.NoError(t, err)
	b := &bench{store: s, bus: newFakeBus()}
	b.engine = newEngine(w.opts, kinds, s, func(context.Context) (bus, error) { return b.bus, nil }, m)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- b.engine.run(ctx) }()
	b.stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = b.stop() }) // tests that care call it themselves
	return b
}
