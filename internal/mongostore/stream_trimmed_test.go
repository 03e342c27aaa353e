package mongostore

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// Where the server trims events, what is no change stays there: beats and progress are most of what is written while tasks run, and
// every reader of the stream would be sent all of it.
func TestTrimmedStreamCarriesChangesOnly(t *testing.T) {
	var sent atomic.Int64
	s := openStore(t, func(o *Options) {
		o.adjust = func(c *options.ClientOptions) {
			c.SetMonitor(&event.CommandMonitor{Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
				var reply struct {
					Cursor struct {
						NextBatch []bson.Raw `bson:"nextBatch"`
					}
				}
				if e.CommandName == "getMore" && bson.Unmarshal(e.Reply, &reply) == nil {
					sent.Add(int64(len(reply.Cursor.NextBatch)))
				}
			}})
		}
	})
	s.wholeEvents = false
	st := openStream(t, s, StreamOptions{})
	got := claimTasks(t, s, insertTasks(t, s, 5)...)
	for range 4 {
		beat(t, s, owned(got...)...)
		require.NoError(t, s.Progress(t.Context(), owned(got...)[0], []byte(`1`)))
	}
	patch(t, s, got[0].ID, bson.D{{Key: "by hand", Value: 1}})
	_, err := s.tasks.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "by hand"}, {Key: "state", Value: "none"}})
	require.NoError(t, err)
	_, err = s.tasks.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "by hand"}})
	require.NoError(t, err)
	_, _, err = s.Cancel(t.Context(), got[1].ID, "ann") // changes no state and is told all the same
	require.NoError(t, err)
	finishOne(t, s, got[0], task.Succeeded)

	seen := next(t, st, 12) // 5 inserts, 5 claims, a cancel, a report
	require.Equal(t, task.Success, seen[11].Change.To)
	require.EqualValues(t, 12+1, sent.Load(), "and the insert by hand, which is dropped here")
}
