package notify

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// echo is what a change repeats of its task for subscribers, see [task.Task].
type echo struct {
	BizKey     string            `json:"bizKey"`
	Labels     map[string]string `json:"labels"`
	WorkflowID string            `json:"workflowId"`
}

// eventOf makes the event of one change. Everything in it comes from the change itself, so that a copy made later, from the
// stream or from history, says the same.
func eventOf(o task.Observed) (events.Msg, error) {
	c := o.Change
	e := events.Event{
		ID: o.ID, Type: c.Type, Seq: c.Seq, From: string(c.From), State: string(c.To), Reason: string(c.Reason),
		Attempt: c.Attempt, ExecutionID: task.ExecutionID(c.Claim, o.ID), At: events.FormatTime(c.At), By: c.By,
		Result: o.Result,
	}
	if !c.ScheduledAt.IsZero() && (c.To == task.Pending || c.To == task.Waiting) {
		e.ScheduledAt = events.FormatTime(c.ScheduledAt)
	}
	if o.Error != nil {
		e.Error = &events.EventError{Message: o.Error.Message, Code: o.Error.Code, Cause: string(o.Error.Cause)}
	}
	if c.Echo != "" {
		var told echo
		if err := json.Unmarshal([]byte(c.Echo), &told); err != nil {
			return events.Msg{}, fmt.Errorf("event %s: read bizKey, labels and workflowId: %w", messageID(o.ID, c.Seq), err)
		}
		e.BizKey, e.Labels, e.WorkflowID = told.BizKey, told.Labels, told.WorkflowID
	}
	return encode(e, messageID(o.ID, c.Seq), events.TypeTaskChanged, c)
}

// gapMessage announces that the changes from..to of a task cannot be published any more. after is the oldest change that can.
// The subject is that of the state the task was in when the gap ended.
func gapMessage(id string, from, to int64, after task.Change) (events.Msg, error) {
	e := events.Event{
		ID: id, Type: after.Type, Seq: to, State: string(after.From), Attempt: after.Attempt,
		At: events.FormatTime(after.At), By: after.By, Gap: &events.Gap{FromSeq: from, ToSeq: to},
	}
	return encode(e, messageID(id, to)+":gap", events.TypeEventGap, after)
}

func encode(e events.Event, id, kind string, c task.Change) (events.Msg, error) {
	body, err := events.EncodeEvent(e)
	if err != nil {
		return events.Msg{}, fmt.Errorf("event %s: %w", id, err)
	}
	meta := events.Meta{ID: id, Source: events.Source("notifier"), Type: kind, Subject: e.ID, Time: c.At}
	return events.Msg{Subject: events.SubjectEvent(e.Type, e.State), ID: id, Header: meta.Header(), Data: body}, nil
}

func messageID(id string, seq int64) string { return id + ":" + strconv.FormatInt(seq, 10) }

// history turns what a task keeps of its past into the changes it consisted of, oldest first, and tells how many of the
// first ones are no longer kept.
func history(t *task.Task) (kept []task.Observed, missing int64) {
	kept = make([]task.Observed, 0, len(t.History))
	for i, h := range t.History {
		if i == 0 {
			missing = h.Seq - 1
		}
		o := task.Observed{ID: t.ID, Change: task.Change{
			Seq: h.Seq, Type: t.Type, Channel: t.Channel, Priority: t.Priority, From: h.From, To: h.To, Reason: h.Reason,
			Attempt: h.Attempt, Claim: h.Claim, At: h.At, By: h.By, Echo: t.Echo,
		}}
		if h.Seq == t.Seq {
			o.Change.ScheduledAt = t.ScheduledAt // the older ones' are not kept
		}
		if h.Reason != task.ReasonCancelled { // a cancelled attempt may leave an error, but it is not why the task ended
			o.Error = h.Error
		}
		if h.To == task.Success {
			o.Result = t.Result
		}
		kept = append(kept, o)
	}
	return kept, missing
}

// deathReasons are the ends that leave a dead letter, unless the task asked for none.
var deathReasons = map[task.Reason]bool{
	task.ReasonExhausted: true, task.ReasonNonRetryable: true, task.ReasonWorkerLost: true,
	task.ReasonRejectedResult: true, task.ReasonExpired: true,
}

// died tells whether a change may leave a dead letter. Only the task itself knows whether it wants one.
func died(c task.Change) bool { return c.To == task.Failed && deathReasons[c.Reason] }

// deadTask makes the dead letter of a failed task, with the error of each attempt that its history keeps; false when the
// task is not failed or asked for none.
func deadTask(t *task.Task) (task.DeadTask, bool) {
	if t.State != task.Failed || t.OnExhausted == task.Ignore || len(t.History) == 0 {
		return task.DeadTask{}, false
	}
	last := t.History[len(t.History)-1]
	if !deathReasons[last.Reason] {
		return task.DeadTask{}, false
	}
	d := task.DeadTask{
		ID: t.ID, Type: t.Type, Reason: last.Reason, At: last.At, Attempts: t.Attempts, Failures: t.Failures, Losses: t.Losses,
		LastError: t.LastError, BizKey: t.BizKey, Labels: t.Labels, WorkflowID: t.WorkflowID,
	}
	for _, h := range t.History {
		if h.Error != nil {
			d.Errors = append(d.Errors, h)
		}
	}
	return d, true
}
