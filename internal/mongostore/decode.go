package mongostore

import (
	"encoding/json"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/ax-scheduler/ax/internal/task"
)

// decodeTask reads a document. Fields that a projection left out stay zero; unknown ones are skipped, so that a newer version
// may add some. Nothing in the task refers to raw afterwards.
func decodeTask(raw bson.Raw) (*task.Task, error) {
	t := &task.Task{}
	var code string
	err := eachElement(raw, func(key string, v bsoncore.Value) error {
		var err error
		switch key {
		case "_id":
			t.ID = text(v)
		case "taskType":
			t.Type = text(v)
		case "state":
			t.State = task.State(text(v))
		case "priority":
			t.Priority = number(v)
		case "channel":
			t.Channel = text(v)
		case "scheduledAt":
			t.ScheduledAt = date(v)
		case "delayMs":
			t.Delay = millis(v)
		case "createdAt":
			t.CreatedAt = date(v)
		case "startedAt":
			t.StartedAt = date(v)
		case "finishedAt":
			t.FinishedAt = date(v)
		case "attempts":
			t.Attempts = number(v)
		case "failures":
			t.Failures = number(v)
		case "losses":
			t.Losses = number(v)
		case "maxAttempts":
			t.MaxAttempts = number(v)
		case "maxLosses":
			t.MaxLosses = number(v)
		case "timeoutMs":
			t.Timeout = millis(v)
		case "retry":
			t.Retry, err = decodeRetry(v)
		case "onExhausted":
			t.OnExhausted = text(v)
		case "deadlineAt":
			t.DeadlineAt = date(v)
		case "expiresAt":
			t.ExpiresAt = date(v)
		case "checkAt":
			t.CheckAt = date(v)
		case "payload":
			t.Payload = payloadJSON(v)
		case "payloadRaw", "result", "progress":
			decodeJSONText(t, key, v)
		case "lastError":
			t.LastError = decodeError(text(v))
		case "errorCode":
			code = text(v)
		case "workerId":
			t.WorkerID = text(v)
		case "claim":
			t.Claim = text(v)
		case "leaseUntil":
			t.LeaseUntil = date(v)
		case "cancelRequestedAt":
			t.CancelRequestedAt = date(v)
		case "history":
			t.History, err = decodeHistory(v)
		default:
			err = decodeRelation(t, key, v)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("decode task %q: %w", t.ID, err)
	}
	if t.LastError != nil && t.LastError.Code == "" {
		t.LastError.Code = code
	}
	return t, nil
}

// decodeRelation reads the fields that say where a task came from, what it belongs to and what it waits for.
func decodeRelation(t *task.Task, key string, v bsoncore.Value) (err error) {
	switch key {
	case "dependsOn":
		t.DependsOn, err = texts(v)
	case "condition":
		t.Condition = text(v)
	case "waitFor":
		t.WaitFor, err = texts(v)
	case "waitingOn":
		t.WaitingOn, err = texts(v)
	case "held":
		t.Held, _ = v.BooleanOK()
	case "bizKey":
		t.BizKey = text(v)
	case "uniqueKey":
		t.UniqueKey = text(v)
	case "workflowId":
		t.WorkflowID = text(v)
	case "rerunOf":
		t.RerunOf = text(v)
	case "source":
		t.Source = text(v)
	case "labels":
		t.Labels = make(map[string]string)
		err = eachMember(v, func(k string, v bsoncore.Value) error {
			t.Labels[k] = text(v)
			return nil
		})
	case "concurrencyKey":
		t.ConcurrencyKey = text(v)
	case "traceparent":
		t.Traceparent = text(v)
	case "submitHash":
		t.SubmitHash = text(v)
	case "echo":
		t.Echo = text(v)
	case "seq":
		t.Seq = int64(number(v))
	case "change":
		t.Change = text(v)
	}
	return err
}

func decodeJSONText(t *task.Task, key string, v bsoncore.Value) {
	s, ok := v.StringValueOK()
	if !ok {
		return
	}
	switch key {
	case "payloadRaw":
		t.Payload = json.RawMessage(s)
	case "result":
		t.Result = json.RawMessage(s)
	case "progress":
		t.Progress = json.RawMessage(s)
	}
}

func decodeRetry(v bsoncore.Value) (p task.RetryPolicy, err error) {
	err = eachMember(v, func(k string, v bsoncore.Value) error {
		switch k {
		case "baseMs":
			p.Base = millis(v)
		case "factor":
			p.Factor, _ = v.DoubleOK()
		case "maxMs":
			p.Max = millis(v)
		case "jitter":
			p.Jitter, _ = v.DoubleOK()
		}
		return nil
	})
	return p, err
}

func decodeHistory(v bsoncore.Value) ([]task.Entry, error) {
	var entries []task.Entry
	err := eachMember(v, func(_ string, v bsoncore.Value) error {
		e, err := decodeEntry(v)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

func decodeEntry(v bsoncore.Value) (e task.Entry, err error) {
	err = eachMember(v, func(k string, v bsoncore.Value) error {
		switch k {
		case "seq":
			e.Seq = int64(number(v))
		case "at":
			e.At = date(v)
		case "from":
			e.From = task.State(text(v))
		case "to":
			e.To = task.State(text(v))
		case "reason":
			e.Reason = task.Reason(text(v))
		case "by":
			e.By = text(v)
		case "attempt":
			e.Attempt = number(v)
		case "claim":
			e.Claim = text(v)
		case "error":
			e.Error = decodeError(text(v))
		}
		return nil
	})
	return e, err
}

// decodeError reads what errorText wrote. A text of another form is shown as the message rather than dropped.
func decodeError(s string) *task.Error {
	if s == "" {
		return nil
	}
	e := &task.Error{}
	if err := json.Unmarshal([]byte(s), e); err != nil {
		return &task.Error{Message: s}
	}
	return e
}

func eachElement(raw []byte, visit func(key string, v bsoncore.Value) error) error {
	length, rest, ok := bsoncore.ReadLength(raw)
	if !ok || int(length) > len(raw) {
		return fmt.Errorf("broken document of %d bytes", len(raw))
	}
	for len(rest) > 1 {
		elem, after, ok := bsoncore.ReadElement(rest)
		if !ok {
			return fmt.Errorf("broken element")
		}
		if err := visit(elem.Key(), elem.Value()); err != nil {
			return err
		}
		rest = after
	}
	return nil
}

// eachMember visits the members of an embedded document or array; of anything else there are none.
func eachMember(v bsoncore.Value, visit func(key string, v bsoncore.Value) error) error {
	if v.Type != bsoncore.TypeEmbeddedDocument && v.Type != bsoncore.TypeArray {
		return nil
	}
	return eachElement(v.Data, visit)
}

func text(v bsoncore.Value) string {
	s, _ := v.StringValueOK()
	return s
}

func texts(v bsoncore.Value) ([]string, error) {
	var out []string
	err := eachMember(v, func(_ string, v bsoncore.Value) error {
		out = append(out, text(v))
		return nil
	})
	return out, err
}

func number(v bsoncore.Value) int {
	n, _ := v.AsInt64OK()
	return int(n)
}

func millis(v bsoncore.Value) time.Duration { return time.Duration(number(v)) * time.Millisecond }

// date gives the zero time for anything that is not a date.
func date(v bsoncore.Value) time.Time {
	ms, ok := v.DateTimeOK()
	if !ok {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
