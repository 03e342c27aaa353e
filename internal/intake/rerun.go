package intake

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Rerun makes the task that runs an ended one once more, at once and with all its attempts. Its id follows from the old
// one's: asking twice gives one task, and to run it a third time the re-run is re-run ([RerunEnded]). It refuses a task that has
// not ended. At is the database's time.
func Rerun(old *task.Task, at time.Time) (*task.Task, error) {
	if !old.State.Terminal() {
		return nil, &events.Error{Code: events.CodeInvalid, Field: "id", Value: old.ID, Allowed: "a task in state success, failed or cancelled",
			Message: "task " + old.ID + " is " + string(old.State) + "; only a task that has ended can be run again"}
	}
	sum := sha256.Sum256([]byte("rerun\n" + old.ID))
	t := &task.Task{
		ID: "ax:rerun:" + hex.EncodeToString(sum[:16]), FixedID: true, RerunOf: old.ID,
		Type: old.Type, State: task.Pending, Channel: old.Channel, Priority: old.Priority, Source: SourceAPI,
		MaxAttempts: old.MaxAttempts, MaxLosses: old.MaxLosses, Timeout: old.Timeout, Retry: old.Retry, OnExhausted: old.OnExhausted,
		Payload: old.Payload, BizKey: old.BizKey, Labels: old.Labels, Echo: old.Echo,
		SubmitHash: "v1:" + hex.EncodeToString(sum[:]),
	}
	if old.UniqueKey != "" { // the re-run of the holder keeps the key, whatever its scope; that of a former one asks for it anew
		t.UniqueKey, t.Unique = old.UniqueKey, &task.Unique{Scope: task.ScopeActive, OnConflict: task.ConflictReject, At: at}
	}
	if err := t.Validate(); err != nil {
		return nil, Refusal(err)
	}
	return t, nil
}

// RerunEnded refuses to run old once more because its re-run has ended too: that one is to be re-run.
func RerunEnded(old, rerun *task.Task) *events.Error {
	return &events.Error{Code: events.CodeFinished, Field: "id", Value: old.ID, Allowed: rerun.ID,
		Message: "task " + old.ID + " was run again before, as " + rerun.ID + ", which ended " + string(rerun.State) + "; to run it once more, re-run " + rerun.ID}
}
