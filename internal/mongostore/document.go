package mongostore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/ax-scheduler/ax/internal/task"
)

// immediately is how far before its creation a task without a start time is scheduled, so that it is due for a claimer whose
// estimate of the time runs a little behind.
const immediately = 250 * time.Millisecond

// firstLook is how long after its creation a waiting task is looked at, should its insert event be lost.
const firstLook = 5 * time.Second

// submit fills in what the store decides about a new task: its state, its times, and the record of its insert. now is a lower
// estimate of the server's time.
func submit(t *task.Task, now time.Time) {
	now = now.UTC().Truncate(time.Millisecond)
	t.CreatedAt = now
	if t.ScheduledAt.IsZero() {
		t.ScheduledAt = now.Add(-immediately)
	}
	if t.Channel == "" {
		t.Channel = task.ChannelStable
	}
	t.State, t.CheckAt = task.Pending, t.ExpiresAt
	if len(t.WaitingOn) > 0 || t.Held {
		t.State, t.CheckAt = task.Waiting, now.Add(firstLook)
	}
	by := mover(task.MoverSubmitter, t.Source)
	t.Seq = 1
	change := task.Change{Seq: 1, Type: t.Type, Channel: t.Channel, Priority: t.Priority, To: t.State, Reason: task.ReasonSubmitted,
		At: now, ScheduledAt: t.ScheduledAt, By: by, Echo: t.Echo}
	t.Change = change.String()
	t.History = []task.Entry{{Seq: 1, At: now, To: t.State, Reason: task.ReasonSubmitted, By: by}}
}

// appendTask appends the document of a task. Fields that a pipeline concatenates or adds to (taskType, channel, echo, seq, the
// counters) always stand in it: a missing one would make the whole expression null.
func appendTask(dst []byte, t *task.Task) ([]byte, error) {
	at, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendStringElement(dst, "_id", t.ID)
	dst = bsoncore.AppendStringElement(dst, "taskType", t.Type)
	dst = bsoncore.AppendStringElement(dst, "state", string(t.State))
	dst = bsoncore.AppendInt32Element(dst, "priority", int32(t.Priority))
	dst = bsoncore.AppendStringElement(dst, "channel", t.Channel)
	dst = appendTime(dst, "scheduledAt", t.ScheduledAt)
	dst = appendTime(dst, "createdAt", t.CreatedAt)
	if t.Delay > 0 {
		dst = bsoncore.AppendInt64Element(dst, "delayMs", t.Delay.Milliseconds())
	}
	dst = appendTime(dst, "startedAt", t.StartedAt)
	dst = appendTime(dst, "finishedAt", t.FinishedAt)
	dst = bsoncore.AppendInt32Element(dst, "attempts", int32(t.Attempts))
	dst = bsoncore.AppendInt32Element(dst, "failures", int32(t.Failures))
	dst = bsoncore.AppendInt32Element(dst, "losses", int32(t.Losses))
	dst = bsoncore.AppendInt32Element(dst, "maxAttempts", int32(t.MaxAttempts))
	dst = bsoncore.AppendInt32Element(dst, "maxLosses", int32(t.MaxLosses))
	dst = bsoncore.AppendInt64Element(dst, "timeoutMs", t.Timeout.Milliseconds())
	dst = appendRetry(dst, t.Retry)
	dst = appendText(dst, "onExhausted", t.OnExhausted)
	dst = appendTime(dst, "deadlineAt", t.DeadlineAt)
	dst = appendTime(dst, "expiresAt", t.ExpiresAt)
	dst = appendTime(dst, "checkAt", t.CheckAt)
	dst = appendPayload(dst, t.Payload)
	dst = appendText(dst, "result", string(t.Result))
	if t.LastError != nil {
		dst = bsoncore.AppendStringElement(dst, "lastError", errorText(t.LastError))
		dst = appendText(dst, "errorCode", t.LastError.Code)
	}
	dst = appendText(dst, "progress", string(t.Progress))
	dst = appendText(dst, "workerId", t.WorkerID)
	dst = appendText(dst, "claim", t.Claim)
	dst = appendTime(dst, "leaseUntil", t.LeaseUntil)
	dst = appendTime(dst, "cancelRequestedAt", t.CancelRequestedAt)
	dst = appendTexts(dst, "dependsOn", t.DependsOn)
	dst = appendText(dst, "condition", t.Condition)
	dst = appendTexts(dst, "waitFor", t.WaitFor)
	dst = appendTexts(dst, "waitingOn", t.WaitingOn)
	if t.Held {
		dst = bsoncore.AppendBooleanElement(dst, "held", true)
	}
	dst = appendText(dst, "bizKey", t.BizKey)
	dst = appendText(dst, "uniqueKey", t.UniqueKey)
	dst = appendText(dst, "workflowId", t.WorkflowID)
	dst = appendText(dst, "rerunOf", t.RerunOf)
	dst = appendText(dst, "source", t.Source)
	dst = appendLabels(dst, t.Labels)
	dst = appendText(dst, "concurrencyKey", t.ConcurrencyKey)
	dst = appendText(dst, "traceparent", t.Traceparent)
	dst = bsoncore.AppendStringElement(dst, "submitHash", t.SubmitHash)
	dst = bsoncore.AppendStringElement(dst, "echo", t.Echo)
	dst = bsoncore.AppendInt64Element(dst, "seq", t.Seq)
	dst = bsoncore.AppendStringElement(dst, "change", t.Change)
	dst = appendHistory(dst, t.History)
	dst, err := bsoncore.AppendDocumentEnd(dst, at)
	if err != nil {
		return nil, fmt.Errorf("encode task %s: %w", t.ID, err)
	}
	return dst, nil
}

// appendTime and appendText leave out what is not set, so that partial indexes on presence hold only what has the field.
func appendTime(dst []byte, key string, t time.Time) []byte {
	if t.IsZero() {
		return dst
	}
	return bsoncore.AppendDateTimeElement(dst, key, t.UnixMilli())
}

func appendText(dst []byte, key, text string) []byte {
	if text == "" {
		return dst
	}
	return bsoncore.AppendStringElement(dst, key, text)
}

func appendTexts(dst []byte, key string, texts []string) []byte {
	if len(texts) == 0 {
		return dst
	}
	return bsoncore.AppendArrayElement(dst, key, textArray(texts))
}

func textArray(texts []string) []byte {
	values := make([]bsoncore.Value, len(texts))
	for i, text := range texts {
		values[i] = bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, text)}
	}
	return bsoncore.BuildArray(nil, values...)
}

func appendLabels(dst []byte, labels map[string]string) []byte {
	if len(labels) == 0 {
		return dst
	}
	at, dst := bsoncore.AppendDocumentElementStart(dst, "labels")
	for k, v := range labels {
		dst = bsoncore.AppendStringElement(dst, k, v)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

func appendRetry(dst []byte, p task.RetryPolicy) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "retry")
	dst = bsoncore.AppendInt64Element(dst, "baseMs", p.Base.Milliseconds())
	dst = bsoncore.AppendDoubleElement(dst, "factor", p.Factor)
	dst = bsoncore.AppendInt64Element(dst, "maxMs", p.Max.Milliseconds())
	dst = bsoncore.AppendDoubleElement(dst, "jitter", p.Jitter)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

func appendHistory(dst []byte, entries []task.Entry) []byte {
	docs := make([]bsoncore.Value, len(entries))
	for i, e := range entries {
		at, d := bsoncore.AppendDocumentStart(nil)
		d = bsoncore.AppendInt64Element(d, "seq", e.Seq)
		d = appendTime(d, "at", e.At)
		d = appendText(d, "from", string(e.From))
		d = bsoncore.AppendStringElement(d, "to", string(e.To))
		d = bsoncore.AppendStringElement(d, "reason", string(e.Reason))
		d = bsoncore.AppendStringElement(d, "by", e.By)
		d = bsoncore.AppendInt32Element(d, "attempt", int32(e.Attempt))
		d = appendText(d, "claim", e.Claim)
		if e.Error != nil {
			d = bsoncore.AppendStringElement(d, "error", errorText(e.Error))
		}
		d, _ = bsoncore.AppendDocumentEnd(d, at)
		docs[i] = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: d}
	}
	return bsoncore.AppendArrayElement(dst, "history", bsoncore.BuildArray(nil, docs...))
}

// maxErrorCode is how many bytes of an error code are kept.
const maxErrorCode = 256

// errorText is the stored form of an error: one JSON string of at most MaxErrorText bytes. The stack gives way first, then the
// message; a code is kept whole up to maxErrorCode.
func errorText(e *task.Error) string {
	short := *e
	short.Code = cut(short.Code, maxErrorCode)
	for _, limit := range []int{task.MaxErrorText, 4 << 10, 2 << 10, 1 << 10, 512} {
		short.Message = cut(e.Message, limit)
		for _, stack := range []int{task.MaxErrorText, 4 << 10, 2 << 10, 1 << 10, 0} {
			short.Stack = cut(e.Stack, stack)
			text, err := json.Marshal(&short)
			if err == nil && len(text) <= task.MaxErrorText {
				return string(text)
			}
			if e.Stack == "" {
				break
			}
		}
	}
	return `{"message":"the error could not be stored"}`
}

// cut shortens text to at most limit bytes of valid UTF-8.
func cut(text string, limit int) string {
	if len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
