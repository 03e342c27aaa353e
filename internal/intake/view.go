package intake

import (
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// View shows a task as the API does, in full.
func View(t *task.Task) events.Task {
	v := Brief(t)
	v.Payload, v.Result, v.Progress = t.Payload, t.Result, t.Progress
	return v
}

// Brief shows a task as lists do: without payload, result and progress.
func Brief(t *task.Task) events.Task {
	v := events.Task{
		ID: t.ID, Type: t.Type, State: string(t.State), Priority: t.Priority, Channel: t.Channel,
		CreatedAt: formatTime(t.CreatedAt), ScheduledAt: formatTime(t.ScheduledAt), StartedAt: formatTime(t.StartedAt),
		FinishedAt: formatTime(t.FinishedAt), ExpiresAt: formatTime(t.ExpiresAt), CancelRequestedAt: formatTime(t.CancelRequestedAt),
		Attempts: t.Attempts, Failures: t.Failures, Losses: t.Losses, MaxAttempts: t.MaxAttempts, MaxLosses: t.MaxLosses,
		Timeout: t.Timeout.String(), WorkerID: t.WorkerID, LeaseUntil: formatTime(t.LeaseUntil), ExecutionID: t.ExecutionID(),
		LastError: viewError(t.LastError), BizKey: t.BizKey, Labels: t.Labels, RerunOf: t.RerunOf, Source: t.Source, Seq: t.Seq,
	}
	if change, err := task.ParseChange(t.Change); err == nil { // a task that is not stored yet has none
		v.Reason = string(change.Reason)
	}
	return v
}

// History shows the kept changes of a task, oldest first.
func History(t *task.Task) []events.HistoryEntry {
	entries := make([]events.HistoryEntry, len(t.History))
	for i, e := range t.History {
		entries[i] = events.HistoryEntry{
			Seq: e.Seq, At: events.FormatTime(e.At), From: string(e.From), To: string(e.To), Reason: string(e.Reason), By: e.By,
			Attempt: e.Attempt, Claim: e.Claim, Error: viewError(e.Error),
		}
	}
	return entries
}

func viewError(e *task.Error) *events.EventError {
	if e == nil {
		return nil
	}
	return &events.EventError{Message: e.Message, Code: e.Code, Cause: string(e.Cause)}
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return events.FormatTime(t)
}
