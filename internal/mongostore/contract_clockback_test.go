package mongostore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

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
