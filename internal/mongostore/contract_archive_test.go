package mongostore

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// endedTasks are tasks that ended at the given time, one of each outcome in turn.
func endedTasks(t *testing.T, s *Store, n int, at time.Time, change ...func(*task.Task)) []*task.Task {
	t.Helper()
	tasks := insertTasks(t, s, n, change...)
	for i, claimed := range claimTasks(t, s, tasks...) {
		if i%3 == 2 {
			_, _, err := s.Cancel(t.Context(), claimed.ID, "test")
			require.NoError(t, err)
		}
		finishOne(t, s, claimed, []task.OutcomeKind{task.Succeeded, task.FailedForGood, task.FailedAttempt}[i%3])
		patch(t, s, claimed.ID, bson.D{{Key: "finishedAt", Value: at.Add(time.Duration(i) * time.Millisecond)}})
	}
	return tasks
}

func inArchive(t *testing.T, s *Store) (ids []string) {
	t.Helper()
	require.NoError(t, s.EachArchived(t.Context(), "", time.Time{}, time.Time{}, func(tasks []*task.Task) error {
		ids = append(ids, idsOf(tasks)...)
		return nil
	}))
	return ids
}

func left(t *testing.T, s *Store) int64 {
	t.Helper()
	n, err := s.tasks.CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	return n
}

func TestArchiveMovesWhatHasEnded(t *testing.T) {
	s := openStore(t)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	done := endedTasks(t, s, 6, at)
	live := insertTasks(t, s, 3)
	claimTasks(t, s, live[0])
	waiting := insertTasks(t, s, 1, func(tk *task.Task) { tk.Held = true })
	whole := map[string]*task.Task{}
	for _, tk := range append(append(done, live...), waiting...) {
		whole[tk.ID] = getTask(t, s, tk.ID)
	}

	oldest, ok, err := s.OldestEnded(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, at, oldest)
	byState, n, err := s.EndedWithin(t.Context(), at, at.Add(5*time.Millisecond), 100)
	require.NoError(t, err)
	require.Equal(t, 5, n, "the end of a window is not in it")
	require.Equal(t, map[task.State][]string{task.Success: {done[0].ID, done[3].ID}, task.Failed: {done[1].ID, done[4].ID}, task.Cancelled: {done[2].ID}}, byState)
	_, n, err = s.EndedWithin(t.Context(), at, at.Add(time.Hour), 2)
	require.NoError(t, err)
	require.Equal(t, 2, n)

	all := append(append(idsOf(done), idsOf(live)...), waiting[0].ID, "nobody")
	moved, err := s.Archive(t.Context(), all)
	require.NoError(t, err)
	require.Equal(t, len(done), moved)
	require.ElementsMatch(t, idsOf(done), inArchive(t, s))
	require.EqualValues(t, 4, left(t, s), "what has not ended stays")
	for id, before := range whole {
		require.Equal(t, before, getTask(t, s, id), "nothing of it is lost, and it is found where it is")
	}
	moved, err = s.Archive(t.Context(), all)
	require.NoError(t, err)
	require.Zero(t, moved)

	// A submission of an archived id is a repeat or a conflict as before.
	again := newTask(func(tk *task.Task) { tk.ID, tk.SubmitHash, tk.FixedID = done[0].ID, done[0].SubmitHash, true })
	require.Equal(t, task.Duplicate, insertOne(t, s, again))

	var letters []task.DeadTask
	for _, i := range []int{1, 4} {
		letters = append(letters, task.DeadTask{ID: done[i].ID, Type: "email", Reason: task.ReasonNonRetryable, At: at})
	}
	require.NoError(t, s.UpsertDeadLetters(t.Context(), letters))
	deleted, err := s.PurgeArchive(t.Context(), at, at.Add(2*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, 2, deleted)
	kept, err := s.DeadLettersOf(t.Context(), []string{done[1].ID, done[4].ID})
	require.NoError(t, err)
	require.Equal(t, map[string]bool{done[4].ID: true}, kept, "a dead letter goes with its task")
	oldest, ok, err = s.OldestArchived(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, at.Add(2*time.Millisecond), oldest)
}

func TestArchiveGoesOnWhereItWasBrokenOff(t *testing.T) {
	cut := &replyCutter{}
	s := openStore(t, func(o *Options) {
		o.adjust = func(c *options.ClientOptions) { cut.dial(c); c.SetRetryWrites(false).SetRetryReads(false) }
	})
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	done := endedTasks(t, s, 9, at)
	for _, command := range []string{"insert", "delete", "find"} {
		cut.arm(command)
		_, err := s.Archive(t.Context(), idsOf(done)[:3])
		require.Error(t, err, command)
		for _, tk := range done {
			getTask(t, s, tk.ID)
		}
		_, err = s.Archive(t.Context(), idsOf(done)[:3])
		require.NoError(t, err)
		require.ElementsMatch(t, idsOf(done)[:3], inArchive(t, s)[:3])
		done = done[3:]
		_, err = s.archive.DeleteMany(t.Context(), bson.D{})
		require.NoError(t, err)
	}
	require.Zero(t, left(t, s))
}

func TestArchiveLeavesABadDocumentBehind(t *testing.T) {
	s := openStore(t)
	done := endedTasks(t, s, 6, time.Now().Add(-time.Hour), func(tk *task.Task) { tk.Traceparent = tk.ID })
	// An index of an operator's own refuses one of them: not every duplicate is a copy.
	_, err := s.archive.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: ascending("traceparent"), Options: options.Index().SetUnique(true)})
	require.NoError(t, err)
	_, err = s.archive.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "other"}, {Key: "traceparent", Value: done[2].ID}})
	require.NoError(t, err)
	moved, err := s.Archive(t.Context(), idsOf(done))
	require.NoError(t, err)
	require.Equal(t, 5, moved)
	require.EqualValues(t, 1, left(t, s))
	require.Equal(t, task.Cancelled, getTask(t, s, done[2].ID).State)
}

func TestArchiveFreesOnlyKeysThatEndWithTheTask(t *testing.T) {
	s := openStore(t)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	keyed := func(key string, scope task.UniqueScope) *task.Task {
		return endedTasks(t, s, 1, at, func(tk *task.Task) {
			tk.UniqueKey, tk.Unique = key, &task.Unique{Scope: scope, For: time.Hour, OnConflict: task.ConflictReject, At: time.Now()}
		})[0]
	}
	active, forever, timed, passed := keyed("active", task.ScopeActive), keyed("forever", task.ScopeForever), keyed("timed", task.ScopeDuration), keyed("passed", task.ScopeActive)
	next := wanting(func(tk *task.Task) { tk.UniqueKey = "passed" })
	require.Equal(t, task.Inserted, insertOne(t, s, next))
	moved, err := s.Archive(t.Context(), idsOf([]*task.Task{active, forever, timed, passed}))
	require.NoError(t, err)
	require.Equal(t, 4, moved)
	for key, holder := range map[string]string{"active": "", "forever": forever.ID, "timed": timed.ID, "passed": next.ID} {
		var d uniqueKey
		err := s.bulkDB.Collection(uniqueKeysCollection).FindOne(t.Context(), bson.D{{Key: "_id", Value: uniqueKeyID("email", key)}}).Decode(&d)
		if holder == "" {
			require.Error(t, err, key)
			continue
		}
		require.NoError(t, err, key)
		require.Equal(t, holder, d.TaskID)
	}
	late := wanting(func(tk *task.Task) { tk.UniqueKey = "forever" })
	require.Equal(t, task.Held, insertOne(t, s, late))
}

func TestArchiveTravelsInBoundedCommands(t *testing.T) {
	sizes := &commandSizes{name: "insert"}
	s := openStore(t, func(o *Options) { o.adjust = sizes.watch })
	done := endedTasks(t, s, 24, time.Now().Add(-time.Hour), func(tk *task.Task) { tk.Payload = []byte(`"` + strings.Repeat("x", 500<<10) + `"`) })
	sizes.reset()
	moved, err := s.Archive(t.Context(), idsOf(done))
	require.NoError(t, err)
	require.Equal(t, 24, moved)
	require.Equal(t, 2, sizes.count())
	require.Less(t, sizes.largest(), maxBatchBytes+2<<20)
}
