package mongostore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

func TestStreamOfAStandalone(t *testing.T) {
	m := stacktest.StartMongo(t, localstack.MongoOptions{Standalone: true})
	s := openAt(t, m)
	_, err := s.OpenStream(t.Context(), StreamOptions{})
	require.ErrorIs(t, err, task.ErrNoChangeStream)
}

// openAt opens a store on a server of the test's own.
func openAt(t *testing.T, m *localstack.Mongo) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{URI: m.URI(), Database: "ax"})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx) // the server may be gone
	})
	require.NoError(t, s.EnsureIndexes(t.Context()))
	return s
}

// A place that the server no longer reaches back to is told apart from a failure.
func TestStreamHistoryLost(t *testing.T) {
	if stacktest.Mongo(t).Store() != localstack.StoreSecantusDB {
		t.Skip("MongoDB's shortest history is 990 MB")
	}
	m := stacktest.StartMongo(t, localstack.MongoOptions{ExtraArgs: []string{"--oplog-max-entries", "100"}})
	s := openAt(t, m)
	st := openStream(t, s, StreamOptions{})
	insertTasks(t, s, 1)
	next(t, st, 1)
	old := st.Token()
	st.Close()
	var err error
	stacktest.Eventually(t, 30*time.Second, "the server's history no longer reaches back", func() bool {
		insertTasks(t, s, 200)
		var st *Stream
		if st, err = s.OpenStream(t.Context(), StreamOptions{Token: old}); err == nil {
			st.Close()
		}
		return err != nil
	})
	require.ErrorIs(t, err, task.ErrHistoryLost)
	fresh := openStream(t, s, StreamOptions{})
	tk := insertTasks(t, s, 1)[0]
	require.Equal(t, tk.ID, next(t, fresh, 1)[0].ID)
}

// A server that is killed under an open stream and comes back costs time and nothing else: over 2,000 tasks whose inserts are sent
// again until they are acknowledged, each insert is told once.
func TestStreamSurvivesAKilledServer(t *testing.T) {
	m := stacktest.StartMongo(t, localstack.MongoOptions{})
	s := openAt(t, m)
	st := openStream(t, s, StreamOptions{})
	const all, batch = 2000, 20
	written := make(chan int, all/batch)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; n < all; n += batch {
			tasks := make([]*task.Task, batch)
			for i := range tasks {
				tasks[i] = newTask(func(tk *task.Task) { tk.ID = fmt.Sprintf("k-%04d", n+i) })
			}
			for {
				if _, err := s.Insert(ctx, tasks); err == nil {
					break
				}
				if pauseFor(ctx, 50*time.Millisecond) != nil {
					return
				}
			}
			written <- n + batch
		}
	})
	writer.Go(func() {
		for n := range written {
			if n == all/2 {
				if err := errors.Join(m.Kill(), m.Restart(ctx)); err != nil {
					t.Errorf("restart: %v", err)
				}
			}
			if n == all {
				return
			}
		}
	})
	defer writer.Wait()

	times := make(map[string]int)
	for len(times) < all {
		seen, err := st.Next(ctx)
		require.NoError(t, err, "%d tasks were told", len(times))
		for _, o := range seen {
			times[o.ID]++
		}
	}
	ids := slices.Sorted(maps.Keys(times))
	require.Equal(t, []string{"k-0000", fmt.Sprintf("k-%04d", all-1)}, []string{ids[0], ids[all-1]})
	for id, n := range times {
		require.Equal(t, 1, n, id)
	}
	last := insertTasks(t, s, 1)[0]
	require.Equal(t, last.ID, next(t, st, 1)[0].ID)
}

func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestClassifyStreamErrors(t *testing.T) {
	for code, want := range map[int32]error{286: task.ErrHistoryLost, 280: task.ErrHistoryLost, 40647: task.ErrHistoryLost, 40573: task.ErrNoChangeStream} {
		err := classify(fmt.Errorf("watch: %w", mongo.CommandError{Code: code}))
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, "watch")
	}
	for _, passing := range []error{mongo.CommandError{Code: 91}, mongo.CommandError{Code: 13}, context.Canceled, errors.New("broken pipe")} {
		require.Equal(t, passing, classify(passing))
	}
}

// A stream that breaks before the server has named a place cannot go on where it was.
func TestStreamThatBreaksWithoutAPlace(t *testing.T) {
	st := &Stream{store: openStore(t)}
	broken := errors.New("broken pipe")
	err := st.failed(t.Context(), broken)
	require.ErrorIs(t, err, task.ErrHistoryLost)
	require.ErrorIs(t, err, broken)
	st.token = bson.Raw{5, 0, 0, 0, 0}
	require.NoError(t, st.failed(t.Context(), broken), "with a place it is opened again")
}
