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

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

func openStream(t *testing.T, s *Store, opts StreamOptions) *Stream {
	t.Helper()
	st, err := s.OpenStream(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(st.Close)
	return st
}

// next reads until n changes have come, and fails the test when they do not or when there are more.
func next(t *testing.T, st *Stream, n int) []task.Observed {
	t.Helper()
	var seen []task.Observed
	for deadline := time.Now().Add(time.Minute); len(seen) < n; {
		require.True(t, time.Now().Before(deadline), "%d of %d changes came", len(seen), n)
		more, err := st.Next(t.Context())
		require.NoError(t, err)
		seen = append(seen, more...)
	}
	require.Len(t, seen, n)
	return seen
}

// historyOf is what the stream must tell of a task: its stored history.
func historyOf(tk *task.Task) []task.Change {
	var changes []task.Change
	for _, e := range tk.History {
		changes = append(changes, task.Change{Seq: e.Seq, Type: tk.Type, Channel: tk.Channel, Priority: tk.Priority, From: e.From, To: e.To,
			Reason: e.Reason, Attempt: e.Attempt, Claim: e.Claim, At: e.At, By: e.By, Echo: tk.Echo})
	}
	return changes
}

func changesOf(seen []task.Observed, id string) []task.Change {
	var changes []task.Change
	for _, o := range seen {
		if o.ID == id {
			o.Change.ScheduledAt = time.Time{} // the history does not keep it
			changes = append(changes, o.Change)
		}
	}
	return changes
}

// Each change of a task comes once and in order, with all that its history says, whichever way the server is asked; what is no
// change (beats, progress, writes by hand) does not come.
func TestStreamTellsOfEveryChange(t *testing.T) {
	for _, whole := range []bool{false, true} {
		for _, detail := range []bool{false, true} {
			t.Run(fmt.Sprintf("whole=%v,detail=%v", whole, detail), func(t *testing.T) {
				s := openStore(t)
				s.wholeEvents = whole
				st := openStream(t, s, StreamOptions{Detail: detail})

				tasks := insertTasks(t, s, 5, func(tk *task.Task) { tk.Retry.Base = time.Millisecond; tk.Retry.Jitter = 0 })
				got := claimTasks(t, s, tasks...)
				beat(t, s, owned(got...)...)
				require.NoError(t, s.Progress(t.Context(), owned(got...)[0], []byte(`"half"`)))
				patch(t, s, tasks[4].ID, bson.D{{Key: "by hand", Value: 1}})
				finishOne(t, s, got[0], task.Succeeded)
				finish(t, s, outcomeOf(got[1], task.FailedAttempt), outcomeOf(got[2], task.FailedForGood))
				_, _, err := s.Cancel(t.Context(), tasks[3].ID, "ann")
				require.NoError(t, err)
				finishOne(t, s, got[3], task.Released)
				stacktest.Eventually(t, 10*time.Second, "the retry is due", func() bool {
					got, err := s.Claim(t.Context(), task.ClaimRequest{IDs: idsOf(tasks[1:2]), Claim: newClaim(), Worker: "w2", Lease: time.Minute})
					require.NoError(t, err)
					if len(got) == 1 {
						finishOne(t, s, got[0], task.FailedAttempt)
					}
					return len(got) == 1
				})

				changes := 0
				stored := make([]*task.Task, len(tasks))
				for i, tk := range tasks {
					stored[i] = getTask(t, s, tk.ID)
					changes += len(stored[i].History)
				}
				seen := next(t, st, changes)
				for _, tk := range stored {
					require.Equal(t, historyOf(tk), changesOf(seen, tk.ID))
				}
				for _, o := range seen {
					tk := stored[slices.IndexFunc(stored, func(tk *task.Task) bool { return tk.ID == o.ID })]
					require.Equal(t, o.Change.Seq == tk.Seq, o.Change.String() == tk.Change, "the newest is as it stands in the task")
					if !detail {
						continue
					}
					if o.Change.To == task.Success {
						require.JSONEq(t, string(tk.Result), string(o.Result))
					} else {
						require.Nil(t, o.Result)
					}
					require.Equal(t, tk.History[o.Change.Seq-1].Error, o.Error, "%s", o.Change)
				}
				require.True(t, !detail || slices.ContainsFunc(seen, func(o task.Observed) bool { return o.Error != nil }))
			})
		}
	}
}

// A server may report the update of a small document as its replacement, which then carries the whole document: also a result and an
// error that an earlier change left.
func TestStreamReadsReplacements(t *testing.T) {
	s := openStore(t)
	st := openStream(t, s, StreamOptions{Detail: true})
	for _, c := range []struct {
		kind   task.OutcomeKind
		change string // by which the document is replaced
		failed bool
		result bool
	}{
		{task.FailedForGood, "9|email|stable|5|running|failed|non_retryable|1|c|5|5|worker/w|", true, false},
		{task.FailedForGood, "9|email|stable|5|pending|running|claimed|2|c|5|5|worker/w|", false, false},
		{task.Succeeded, "9|email|stable|5|running|success|succeeded|1|c|5|5|worker/w|", false, true},
		{task.Succeeded, "9|email|stable|5|pending|running|claimed|1|c|5|5|worker/w|", false, false},
	} {
		tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
		finishOne(t, s, tk, c.kind)
		next(t, st, 3)
		var document bson.D
		require.NoError(t, s.tasks.FindOne(t.Context(), bson.D{{Key: "_id", Value: tk.ID}}).Decode(&document))
		for i := range document {
			if document[i].Key == "change" {
				document[i].Value = c.change
			}
		}
		_, err := s.tasks.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: tk.ID}}, document)
		require.NoError(t, err)
		o := next(t, st, 1)[0]
		require.Equal(t, tk.ID, o.ID)
		require.Equal(t, c.change, o.Change.String())
		require.Equal(t, c.failed, o.Error != nil)
		require.Equal(t, c.result, o.Result != nil)
	}
}

func TestStreamGoesOnBehindItsToken(t *testing.T) {
	s := openStore(t)
	st := openStream(t, s, StreamOptions{})
	require.NotNil(t, st.Token(), "a stream knows its place before anything happens")
	first := st.Token()
	var ids []string
	for range 10 {
		ids = append(ids, idsOf(insertTasks(t, s, 30))...)
	}
	next(t, st, 300)
	middle := st.Token()
	st.Close()
	ids = append(ids, idsOf(insertTasks(t, s, 20))...)

	for _, c := range []struct {
		token []byte
		from  int
	}{{first, 0}, {middle, 300}} {
		st := openStream(t, s, StreamOptions{Token: c.token})
		again := next(t, st, len(ids)-c.from)
		for i, o := range again {
			require.Equal(t, ids[c.from+i], o.ID)
		}
		last := openStream(t, s, StreamOptions{Token: st.Token()})
		more := insertTasks(t, s, 1)[0]
		require.Equal(t, more.ID, next(t, last, 1)[0].ID, "nothing of before")
		ids = append(ids, more.ID)
	}
}

// A place survives a read that its reader gave up: nothing is lost and nothing comes twice.
func TestStreamAfterACancelledRead(t *testing.T) {
	s := openStore(t)
	st := openStream(t, s, StreamOptions{})
	before := insertTasks(t, s, 5)
	require.Len(t, next(t, st, 5), 5)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := st.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)

	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond) // while it waits at the server
	defer cancel()
	for err = nil; err == nil; {
		_, err = st.Next(ctx)
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	after := insertTasks(t, s, 5)
	seen := next(t, st, 5)
	for i, o := range seen {
		require.Equal(t, after[i].ID, o.ID)
	}
	require.NotEqual(t, before[0].ID, seen[0].ID)
}

// The place moves on while nothing happens to tasks, so that it does not grow older than the server's memory.
func TestStreamTokenMovesWhileIdle(t *testing.T) {
	s := openStore(t)
	st := openStream(t, s, StreamOptions{})
	start := st.Token()
	stacktest.Eventually(t, 30*time.Second, "the token of an idle stream moves", func() bool {
		seen, err := st.Next(t.Context())
		require.NoError(t, err)
		require.Empty(t, seen)
		return string(st.Token()) != string(start)
	})
	again := openStream(t, s, StreamOptions{Token: st.Token()})
	tk := insertTasks(t, s, 1)[0]
	require.Equal(t, tk.ID, next(t, again, 1)[0].ID, "a place between changes is as good as any")
}

// A change reaches a waiting reader at once: neither the second that the server waits nor the size of a batch delays it.
func TestStreamDoesNotGather(t *testing.T) {
	s := openStore(t)
	st := openStream(t, s, StreamOptions{})
	var took []time.Duration
	for range 20 {
		var arrived time.Time
		var reader sync.WaitGroup
		reader.Go(func() {
			for {
				seen, err := st.Next(t.Context())
				if arrived = time.Now(); err != nil || len(seen) > 0 {
					return
				}
			}
		})
		start := time.Now()
		insertTasks(t, s, 1)
		reader.Wait()
		took = append(took, arrived.Sub(start))
	}
	slices.Sort(took)
	t.Logf("from insert to reader: median %v, worst %v", took[len(took)/2], took[len(took)-1])
	require.Less(t, took[len(took)/2], streamAwait/4)
}

func TestStreamRefusesATokenItCannotRead(t *testing.T) {
	s := openStore(t)
	document := func(v any) []byte {
		b, err := bson.Marshal(bson.D{{Key: "_data", Value: v}})
		require.NoError(t, err)
		return b
	}
	for _, token := range [][]byte{
		[]byte("nonsense"), {5, 0, 0, 0, 0}, document(5), document("zz"),
		document("8265A1B2C3000000012B042C0100296E5A1004A5D6"), // of another server
	} {
		_, err := s.OpenStream(t.Context(), StreamOptions{Token: token})
		require.ErrorIs(t, err, task.ErrHistoryLost, "%x", token)
	}
	require.NotNil(t, openStream(t, s, StreamOptions{Token: []byte{}}).Token(), "an empty one is none")
}

// A dropped collection ends the stream, and its place with it; a new one begins.
func TestStreamOfADroppedCollection(t *testing.T) {
	s := openStore(t)
	st := openStream(t, s, StreamOptions{})
	insertTasks(t, s, 3)
	next(t, st, 3)
	require.NoError(t, s.tasks.Drop(t.Context()))
	var err error
	for deadline := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(deadline); {
		_, err = st.Next(t.Context())
	}
	require.ErrorIs(t, err, task.ErrHistoryLost)

	require.NoError(t, s.EnsureIndexes(t.Context()))
	fresh := openStream(t, s, StreamOptions{})
	tk := insertTasks(t, s, 1)[0]
	require.Equal(t, tk.ID, next(t, fresh, 1)[0].ID)
}

// One change that cannot be read, which no ax of this version has written, keeps back no others.
func TestStreamSkipsWhatIsNoChange(t *testing.T) {
	s := openStore(t)
	st := openStream(t, s, StreamOptions{Detail: true})
	tasks := insertTasks(t, s, 2)
	patch(t, s, tasks[0].ID, bson.D{{Key: "change", Value: "of another make"}})
	patch(t, s, tasks[0].ID, bson.D{{Key: "change", Value: 7}})
	_, err := s.tasks.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: tasks[0].ID}})
	require.NoError(t, err)
	claimTasks(t, s, tasks[1])
	seen := next(t, st, 3)
	require.Equal(t, []string{tasks[0].ID, tasks[1].ID, tasks[1].ID}, []string{seen[0].ID, seen[1].ID, seen[2].ID})
	require.Equal(t, task.Running, seen[2].Change.To)
}
