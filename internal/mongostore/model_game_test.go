package mongostore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/task"
)

// modelSteps is how many steps the lifecycle is tried with: a step is what one call does, or may do, to one task.
const modelSteps = 20_000

// Submitters, workers, reapers and operators act on the same tasks in random order, calls come late, twice or in the middle of others,
// and answers are lost. After each call the tasks are compared with a model. When this fails, rapid prints the shortest history.
func TestLifecycleAgainstTheModel(t *testing.T) {
	const lines = 2
	var steps, calls, cases atomic.Int64
	var failed atomic.Bool // rapid repeats a history that failed, to make it shorter
	began := time.Now()
	t.Run("lines", func(t *testing.T) {
		for i := range lines {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				s := openStore(t, func(o *Options) { o.adjust = interpose })
				for steps.Load() < modelSteps && !failed.Load() {
					rapid.Check(t, func(r *rapid.T) {
						if steps.Load() >= modelSteps && !failed.Load() {
							return
						}
						g := newGame(t.Context(), r, s)
						defer func() {
							if r.Failed() {
								failed.Store(true)
							}
							steps.Add(g.steps)
							calls.Add(g.calls)
							cases.Add(1)
						}()
						g.play()
					})
				}
			})
		}
	})
	if !t.Failed() {
		require.GreaterOrEqual(t, steps.Load(), int64(modelSteps))
	}
	t.Logf("%d steps in %d calls and %d histories, %v", steps.Load(), calls.Load(), cases.Load(), time.Since(began).Round(time.Second))
}

type betweenKey struct{}

// between runs something right before the nth command of a call is sent.
type between struct {
	mu   sync.Mutex
	left int
	do   func()
}

func interpose(o *options.ClientOptions) {
	o.SetMonitor(&event.CommandMonitor{Started: func(ctx context.Context, _ *event.CommandStartedEvent) {
		b, _ := ctx.Value(betweenKey{}).(*between)
		if b == nil {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.left--; b.left == -1 {
			b.do()
		}
	}})
}

// game is one history: a few tasks, and those who act on them.
type game struct {
	t         *rapid.T
	s         *Store
	ctx       context.Context // of the call that is made
	models    map[string]*model
	order     []string // ids, in the order of submission
	workers   []*hand
	readings  [][]*task.Task        // what reapers have read and not acted on yet
	late      []*act                // sent, given up by their callers, and not arrived yet
	recorded  map[task.Owned]string // the reason under which an execution's report went into the history
	claims    int
	submitted int
	steps     int64
	calls     int64
}

// hand is what one worker believes.
type hand struct {
	name    string
	held    []*task.Task   // executions under way, stale ones included
	unknown []*act         // claims without an answer
	reports []task.Outcome // without an answer
}

func newGame(ctx context.Context, t *rapid.T, s *Store) *game {
	g := &game{t: t, s: s, ctx: ctx, models: make(map[string]*model), recorded: make(map[task.Owned]string)}
	for i := range 3 {
		g.workers = append(g.workers, &hand{name: fmt.Sprintf("w%d", i+1)})
	}
	// What a history that failed has left must not meet the next one.
	_, err := s.tasks.DeleteMany(ctx, bson.D{})
	g.must(err)
	return g
}

func (g *game) must(err error) {
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *game) now() interval {
	now, bound, err := g.s.Now()
	g.must(err)
	return interval{now.Add(-bound), now.Add(bound)}
}

// play draws acts until the history is long enough, then lets everything come to its end.
func (g *game) play() {
	g.step(g.submit(4), nil, 0)
	for range rapid.IntRange(10, 40).Draw(g.t, "length") {
		outer := g.draw("act")
		if outer == nil {
			continue
		}
		g.fate(outer)
	}
	g.settle()
}

// fate decides how a call goes: answered, its answer lost, late, never sent, or with another call in its middle.
func (g *game) fate(a *act) {
	switch rapid.SampledFrom([]string{"", "", "", "", "", "interrupted", "interrupted", "interrupted", "unanswered", "late", "unsent"}).Draw(g.t, "fate") {
	case "interrupted":
		at := rapid.IntRange(0, 2).Draw(g.t, "before command")
		g.step(a, g.draw("meanwhile"), at)
	case "unanswered":
		answer := a.learn
		a.learn = a.lost
		g.step(a, nil, 0)
		a.learn = answer
	case "late":
		g.lose(a)
		g.late = append(g.late, a)
	case "unsent":
		g.lose(a)
	default:
		g.step(a, nil, 0)
	}
}

func (g *game) lose(a *act) {
	g.t.Logf("no answer to: %v", a)
	if a.lost != nil {
		a.lost(a)
	}
}

// step makes a call, another one right before one of its commands where asked, and compares all tasks with the model.
func (g *game) step(outer, inner *act, at int) {
	acts := []*act{outer}
	ctx := g.ctx
	if inner != nil {
		fired := false
		g.ctx = context.WithValue(ctx, betweenKey{}, &between{left: at, do: func() {
			fired = true
			was := g.ctx
			g.ctx = ctx
			g.make(inner)
			g.ctx = was
		}})
		g.t.Logf("%v; before its command %d: %v", outer, at, inner)
		g.make(outer)
		g.ctx = ctx
		if fired {
			acts = append(acts, inner)
		} else {
			inner = nil
		}
	} else {
		g.t.Logf("%v", outer)
		g.make(outer)
	}
	before := make(map[string]model, len(g.models))
	for id, m := range g.models {
		before[id] = *m
	}
	g.compare(acts)
	for _, a := range acts {
		g.answer(a, before, inner == nil)
		if a.learn != nil {
			a.learn(a)
		}
	}
}

func (g *game) make(a *act) {
	a.made = make(map[string]bool)
	g.calls++
	g.steps += int64(max(1, len(a.ids)))
	a.before = g.now()
	a.call(a)
	a.after = g.now()
	if a.err != nil {
		g.t.Fatalf("%v: %v", a, a.err)
	}
}

// compare reads all tasks and has the model judge them.
func (g *game) compare(acts []*act) {
	cursor, err := g.s.tasks.Find(g.ctx, bson.D{}, options.Find().SetBatchSize(1000))
	g.must(err)
	found, err := decodeAll(g.ctx, cursor)
	g.must(err)
	seen := 0
	for _, is := range found {
		m := g.models[is.ID]
		if m == nil {
			g.t.Fatalf("task %s came from nowhere", is.ID)
		}
		seen++
		if m.Seq == 0 {
			m.stored(is)
			g.order = append(g.order, is.ID)
			continue
		}
		seq := m.Seq
		if err := m.judge(is, acts); err != nil {
			g.t.Fatalf("task %s: %v", is.ID, err)
		}
		for _, e := range is.History {
			if e.Seq > seq && e.From == task.Running && e.To != task.Running && len(e.By) > 7 && e.By[:7] == "worker/" {
				g.recorded[task.Owned{ID: is.ID, Claim: e.Claim}] = string(e.Reason)
			}
		}
	}
	if known := len(g.order); seen != known {
		g.t.Fatalf("%d tasks are stored, %d were submitted: lost", seen, known)
	}
}

// stored begins a model with the task as it was inserted.
func (m *model) stored(is *task.Task) {
	m.Task = *is
}

// answer compares what a call said with what the tasks show. alone: nothing else happened during the call.
func (g *game) answer(a *act, before map[string]model, alone bool) {
	fail := func(format string, args ...any) { g.t.Fatalf("%v: "+format, append([]any{a}, args...)...) }
	for i, id := range a.ids {
		m, was := g.models[id], before[id]
		switch a.kind {
		case "insert":
			if m.Seq == 0 {
				fail("%s was not stored", id)
			}
		case "claim":
			if slices.Contains(a.got, id) && !a.made[id] {
				fail("%s was given away without a claim", id)
			}
			if alone && a.made[id] && !slices.Contains(a.got, id) {
				fail("%s was claimed and not given", id)
			}
			if alone && !a.made[id] && was.ready(a) {
				fail("%s was ready and not claimed", id)
			}
		case "finish":
			o := &a.reports[i]
			reason, ok := g.recorded[o.Owned]
			if ok != (a.answers[i] == nil) {
				fail("answered %v for %s, but its end on record is %q", a.answers[i], id, reason)
			}
			if alone && was.State == task.Running && was.Claim == o.Claim && !a.made[id] {
				fail("the report of a valid execution of %s was not recorded", id)
			}
		case "beat":
			valid := m.State == task.Running && m.Claim == a.owned[i].Claim
			lost := slices.Contains(a.beaten.Lost, a.owned[i])
			if alone && lost == valid {
				fail("said lost=%v of %v, valid=%v", lost, a.owned[i], valid)
			}
			if alone && valid && m.CancelRequestedAt.IsZero() == slices.Contains(a.beaten.Cancelled, a.owned[i]) {
				fail("told of no cancel, or of one that nobody asked for: %v", a.owned[i])
			}
			if alone && valid && a.lease > time.Second && m.Timeout > time.Minute && m.CancelRequestedAt.IsZero() && m.LeaseUntil.Before(a.before.earliest.Add(a.lease-time.Millisecond)) {
				fail("did not extend the lease of %v", a.owned[i])
			}
		case "revive", "expire":
			if alone && slices.Contains(a.got, id) != a.made[id] {
				fail("says it ended %v; %s: %v", a.got, id, a.made[id])
			}
			if alone && !a.made[id] && was.Seq == a.read[i].Seq && was.LeaseUntil.Equal(a.read[i].LeaseUntil) {
				fail("left %s, which stood as it was read", id)
			}
		case "cancel":
			want := map[task.CancelStatus]bool{
				task.CancelDone:     m.State == task.Cancelled,
				task.CancelAsked:    !m.CancelRequestedAt.IsZero(),
				task.CancelTooLate:  m.State == task.Success || m.State == task.Failed,
				task.CancelNotFound: m.Seq == 0,
			}
			if !want[a.cancelled] {
				fail("answered %s, but the task is %s", a.cancelled, facts(&m.Task))
			}
			if alone && !was.State.Terminal() && was.CancelRequestedAt.IsZero() && !a.made[id] {
				fail("changed nothing of %s", facts(&was.Task))
			}
		}
	}
}

// ready reports whether a claim had to take the task: it was due and wanted well before the call.
func (m *model) ready(a *act) bool {
	const margin = 10 * time.Millisecond
	return m.Seq > 0 && m.State == task.Pending && m.CancelRequestedAt.IsZero() && m.ScheduledAt.Before(a.before.earliest.Add(-margin)) &&
		(m.ExpiresAt.IsZero() || m.ExpiresAt.After(a.after.latest.Add(margin)))
}
