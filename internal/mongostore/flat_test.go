package mongostore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

// hotQuery is one of the statements that run all the time. prepare makes what it needs and returns the statement itself.
type hotQuery struct {
	name    string
	index   string // that it must use; "_id_" for reads and writes by id
	prepare func(t *testing.T, s *Store) (run func() error)
}

var hotQueries = []hotQuery{
	{"insert", "_id_", func(t *testing.T, s *Store) func() error {
		tasks := make([]*task.Task, 100)
		for i := range tasks {
			tasks[i] = newTask(func(tk *task.Task) { tk.FixedID = true })
		}
		return func() error { _, err := s.Insert(t.Context(), tasks); return err }
	}},
	{"insert of what is stored", "_id_", func(t *testing.T, s *Store) func() error {
		tasks := insertTasks(t, s, 100)
		return func() error { _, err := s.Insert(t.Context(), tasks); return err }
	}},
	{"claim", "_id_", func(t *testing.T, s *Store) func() error {
		ids := idsOf(insertTasks(t, s, 100))
		return func() error { return claimAll(t.Context(), s, ids) }
	}},
	{"claim of what is gone", "_id_", func(t *testing.T, s *Store) func() error {
		ids := idsOf(claimTasks(t, s, insertTasks(t, s, 100)...))
		return func() error {
			_, err := s.Claim(t.Context(), task.ClaimRequest{IDs: ids, Claim: newClaim(), Worker: "w1", Lease: time.Minute})
			return err
		}
	}},
	{"heartbeat", "_id_", func(t *testing.T, s *Store) func() error {
		o := owned(claimTasks(t, s, insertTasks(t, s, 100)...)...)
		return func() error {
			_, err := s.Heartbeat(t.Context(), task.HeartbeatRequest{Worker: "w1", Owned: o, Lease: time.Minute})
			return err
		}
	}},
	{"finish", "_id_", func(t *testing.T, s *Store) func() error {
		outcomes := outcomesOf(claimTasks(t, s, insertTasks(t, s, 100)...))
		return func() error { _, err := s.Finish(t.Context(), outcomes); return err }
	}},
	{"finish of what is recorded", "_id_", func(t *testing.T, s *Store) func() error {
		outcomes := outcomesOf(claimTasks(t, s, insertTasks(t, s, 100)...))
		finish(t, s, outcomes...)
		return func() error { _, err := s.Finish(t.Context(), outcomes); return err }
	}},
	{"progress", "_id_", func(t *testing.T, s *Store) func() error {
		o := owned(claimTasks(t, s, insertTasks(t, s, 1)...)...)
		return func() error { return s.Progress(t.Context(), o[0], []byte("1")) }
	}},
	{"cancel", "_id_", func(t *testing.T, s *Store) func() error {
		id := insertTasks(t, s, 1)[0].ID
		return func() error { _, _, err := s.Cancel(t.Context(), id, "ann"); return err }
	}},
	{"candidates", "claim", func(t *testing.T, s *Store) func() error {
		now := serverNow(t, s)
		w := task.Window{Type: "email", Channel: task.ChannelStable, Priority: task.DefaultPriority, From: now.Add(-time.Second), To: now, Limit: 100}
		return func() error { _, err := s.Candidates(t.Context(), w); return err }
	}},
	{"front of an empty priority", "claim", func(t *testing.T, s *Store) func() error {
		return func() error { _, _, err := s.Front(t.Context(), "email", task.ChannelStable, 1); return err }
	}},
	{"due", "due", func(t *testing.T, s *Store) func() error {
		now := serverNow(t, s)
		return func() error { _, err := s.Due(t.Context(), now, now.Add(time.Second), 100); return err }
	}},
	{"sweep", "check", func(t *testing.T, s *Store) func() error {
		now := serverNow(t, s)
		return func() error { _, err := s.SweepCheck(t.Context(), now, 100); return err }
	}},
	{"revive", "_id_", func(t *testing.T, s *Store) func() error {
		tasks := claimTasks(t, s, insertTasks(t, s, 100)...)
		return func() error { _, err := s.Revive(t.Context(), tasks, "r1"); return err }
	}},
	{"expire", "_id_", func(t *testing.T, s *Store) func() error {
		expiry := serverNow(t, s).Add(time.Minute)
		tasks := insertTasks(t, s, 100, func(tk *task.Task) { tk.ExpiresAt = expiry })
		return func() error { _, err := s.Expire(t.Context(), tasks, "r1"); return err }
	}},
	{"finished in a window", "done", func(t *testing.T, s *Store) func() error {
		now := serverNow(t, s)
		return func() error {
			_, err := s.FinishedBetween(t.Context(), now.Add(-time.Hour), now.Add(-time.Hour+time.Second), 100)
			return err
		}
	}},
}

func claimAll(ctx context.Context, s *Store, ids []string) error {
	got, err := s.Claim(ctx, task.ClaimRequest{IDs: ids, Claim: newClaim(), Worker: "w1", Lease: time.Minute})
	if err == nil && len(got) != len(ids) {
		err = fmt.Errorf("claimed %d of %d", len(got), len(ids))
	}
	return err
}

func outcomesOf(tasks []*task.Task) []task.Outcome {
	outcomes := make([]task.Outcome, len(tasks))
	for i, tk := range tasks {
		outcomes[i] = outcomeOf(tk, task.Succeeded)
	}
	return outcomes
}

func serverNow(t *testing.T, s *Store) time.Time {
	t.Helper()
	now, _, err := s.Now()
	require.NoError(t, err)
	return now
}

// On MongoDB: each hot statement, as it was really sent, uses its index and reads no more than it needs by the server's own word.
func TestHotQueriesUseTheirIndexes(t *testing.T) {
	if stacktest.Mongo(t).Store() != "mongodb" {
		t.Skip("only MongoDB's explain can be believed; TestHotQueriesStayFlat is the test for this store")
	}
	sent := &statements{}
	s := openStore(t, func(o *Options) { o.adjust = sent.watch })
	fillStore(t, s, 0, 5_000)
	for _, q := range hotQueries {
		run := q.prepare(t, s)
		sent.reset()
		require.NoError(t, run(), q.name)
		for _, st := range sent.all() {
			if st.collection == TasksCollection {
				require.Equal(t, []string{q.index}, indexesOf(t, s, st), "%s: %s", q.name, st.filter)
			}
		}
	}
}

// statement is the part of a command that chooses documents.
type statement struct {
	collection string
	filter     bson.Raw
	sort       bson.Raw
}

type statements struct {
	mu   sync.Mutex
	seen []statement
}

func (c *statements) watch(o *options.ClientOptions) {
	o.SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		var command struct {
			Find    string
			Update  string
			Filter  bson.Raw
			Sort    bson.Raw
			Updates []struct{ Q bson.Raw }
		}
		if err := bson.Unmarshal(e.Command, &command); err != nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if command.Find != "" {
			c.seen = append(c.seen, statement{command.Find, command.Filter, command.Sort})
		}
		for _, u := range command.Updates {
			c.seen = append(c.seen, statement{command.Update, u.Q, nil})
		}
	}})
}

func (c *statements) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = nil
}

func (c *statements) all() []statement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

// indexesOf asks the server which indexes a statement uses; a scan of the collection is named as such.
func indexesOf(t *testing.T, s *Store, st statement) []string {
	find := bson.D{{Key: "find", Value: st.collection}, {Key: "filter", Value: st.filter}}
	if st.sort != nil {
		find = append(find, bson.E{Key: "sort", Value: st.sort})
	}
	var reply struct {
		QueryPlanner struct{ WinningPlan bson.Raw } `bson:"queryPlanner"`
	}
	err := s.hotDB.RunCommand(t.Context(), bson.D{{Key: "explain", Value: find}, {Key: "verbosity", Value: "queryPlanner"}}).Decode(&reply)
	require.NoError(t, err)
	names := map[string]bool{}
	var walk func(v bson.RawValue)
	walk = func(v bson.RawValue) {
		var members []bson.RawElement
		if doc, ok := v.DocumentOK(); ok {
			members, _ = doc.Elements()
		} else if list, ok := v.ArrayOK(); ok {
			members, _ = bson.Raw(list).Elements()
		}
		for _, m := range members {
			text, _ := m.Value().StringValueOK()
			switch {
			case m.Key() == "indexName":
				names[text] = true
			case m.Key() == "stage" && (text == "IDHACK" || text == "EXPRESS_IXSCAN"):
				names["_id_"] = true
			case m.Key() == "stage" && text == "COLLSCAN":
				names["a scan of the collection"] = true
			}
			walk(m.Value())
		}
	}
	walk(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: reply.QueryPlanner.WinningPlan})
	var list []string
	for name := range names {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// On every store: what runs all the time costs the same with 200,000 tasks as with 10,000, nine of ten of them finished.
func TestHotQueriesStayFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("stores 200,000 tasks")
	}
	const few, many = 10_000, 200_000
	s := openStore(t)
	fillStore(t, s, 0, few)
	before := measure(t, s)
	fillStore(t, s, few, many)
	after := measure(t, s)
	for _, q := range hotQueries {
		// A scan of 200,000 documents takes hundreds of milliseconds; the slack covers a busy machine.
		t.Logf("%-28s %8.2f ms with %d tasks, %8.2f ms with %d", q.name, ms(before[q.name]), few, ms(after[q.name]), many)
		require.Less(t, after[q.name], 3*before[q.name]+50*time.Millisecond, q.name)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// measure takes the best of several runs of each statement.
func measure(t *testing.T, s *Store) map[string]time.Duration {
	best := make(map[string]time.Duration)
	for _, q := range hotQueries {
		best[q.name] = time.Hour
		for range 5 {
			run := q.prepare(t, s)
			start := time.Now()
			require.NoError(t, run(), q.name)
			best[q.name] = min(best[q.name], time.Since(start))
		}
	}
	return best
}

// fillStore adds tasks number from to to: nine of ten finished some time ago, the rest pending with start times spread over the
// hours to come.
func fillStore(t *testing.T, s *Store, from, to int) {
	t.Helper()
	now := serverNow(t, s).UTC().Truncate(time.Millisecond)
	var workers sync.WaitGroup
	parts := make(chan []any)
	for range 4 {
		workers.Go(func() {
			for docs := range parts {
				if _, err := s.bulkTasks.InsertMany(context.Background(), docs, options.InsertMany().SetOrdered(false)); err != nil {
					t.Errorf("fill: %v", err)
				}
			}
		})
	}
	var docs []any
	for i := from; i < to; i++ {
		tk := newTask(func(tk *task.Task) { tk.ID, tk.BizKey = fmt.Sprintf("fill-%07d", i), "" })
		if i%10 == 0 {
			tk.ScheduledAt = now.Add(time.Minute + time.Duration(i)*50*time.Millisecond)
			submit(tk, now)
		} else {
			submit(tk, now)
			tk.State, tk.FinishedAt, tk.Attempts = task.Success, now.Add(-2*time.Hour+time.Duration(i)*30*time.Millisecond), 1
		}
		doc, err := appendTask(nil, tk)
		require.NoError(t, err)
		if docs = append(docs, doc); len(docs) == maxBatch || i == to-1 {
			parts <- docs
			docs = nil
		}
	}
	close(parts)
	workers.Wait()
}
