package mongostore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

// A task that was claimed before the server's clock went back has a start time that has not come again yet. When its execution ends
// without a delay of its own, it is due at once, and not when that time comes: its newest change has the right time by then, so that
// nothing else can tell.
func TestWhatComesBackAfterTheClockWentBackIsDue(t *testing.T) {
	s := openStore(t)
	for name, end := range map[string]func(t *testing.T, tk *task.Task){
		"revived":                     func(t *testing.T, tk *task.Task) { require.Equal(t, []string{tk.ID}, revive(t, s, tk)) },
		"handed back":                 func(t *testing.T, tk *task.Task) { finishOne(t, s, tk, task.Released) },
		"cancelled without a request": func(t *testing.T, tk *task.Task) { finishOne(t, s, tk, task.CancelledByRequest) },
	} {
		t.Run(name, func(t *testing.T) {
			tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
			patch(t, s, tk.ID, bson.D{{Key: "scheduledAt", Value: tk.ScheduledAt.Add(time.Hour)}, {Key: "createdAt", Value: tk.CreatedAt.Add(time.Hour)}})
			tk = getTask(t, s, tk.ID)
			end(t, tk)
			now := getTask(t, s, tk.ID)
			requireSound(t, now)
			require.Equal(t, task.Pending, now.State)
			require.Equal(t, now.History[len(now.History)-1].At, now.ScheduledAt)
		})
	}
}

// What changes between mending's reading and its write stays as it has become.
func TestMendGuard(t *testing.T) {
	var afterFind func()
	s := openStore(t, func(o *Options) {
		o.adjust = func(c *options.ClientOptions) {
			c.SetMonitor(&event.CommandMonitor{Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
				if e.CommandName != "find" || afterFind == nil {
					return
				}
				run := afterFind
				afterFind = nil
				run()
			}})
		}
	})
	for name, change := range map[string]func(t *testing.T, tk *task.Task){
		// Neither its state nor its newest change tells: only the start time does.
		"rescheduled": func(t *testing.T, tk *task.Task) {
			patch(t, s, tk.ID, bson.D{{Key: "scheduledAt", Value: tk.ScheduledAt.Add(time.Minute)}})
		},
		"cancelled": func(t *testing.T, tk *task.Task) {
			_, _, err := s.Cancel(t.Context(), tk.ID, "ann")
			require.NoError(t, err)
		},
		"held": func(t *testing.T, tk *task.Task) {
			patch(t, s, tk.ID, bson.D{{Key: "state", Value: string(task.Waiting)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			left := ahead(t, s, insertTasks(t, s, 1)[0].ID, time.Hour)
			other := ahead(t, s, insertTasks(t, s, 1)[0].ID, time.Hour)
			stepped := false
			afterFind = func() {
				change(t, left)
				stepped = true
				left = getTask(t, s, left.ID)
			}
			require.Equal(t, 1, mend(t, s), "the other one alone")
			require.True(t, stepped)
			require.Equal(t, left, getTask(t, s, left.ID))
			require.Equal(t, task.ReasonRescheduled, getTask(t, s, other.ID).History[1].Reason)
			archiveTask(t, s, left.ID)
		})
	}
}
