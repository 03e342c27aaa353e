package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// DecodeSubmit reads the body of a submission strictly, see [Decode]. The payload is kept byte for byte.
func DecodeSubmit(data []byte) (Submit, error) { return decoded[Submit](data) }

// DecodeSubmitRequest reads the body of ax.api.submit strictly, see [Decode].
func DecodeSubmitRequest(data []byte) (SubmitRequest, error) { return decoded[SubmitRequest](data) }

// DecodeSubmitManyRequest reads the body of ax.api.submitMany strictly, see [Decode]. One task that cannot be read refuses
// the whole request; the field's path tells which.
func DecodeSubmitManyRequest(data []byte) (SubmitManyRequest, error) {
	return decoded[SubmitManyRequest](data)
}

func decoded[T any](data []byte) (T, error) {
	var v T
	err := Decode(data, &v)
	return v, err
}

// DecodeEvent reads an event. Unlike what comes in at a door it may hold fields that this version does not know: they are
// ignored, so that an older subscriber reads what a newer ax publishes.
func DecodeEvent(data []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(data, &e); err != nil {
		return Event{}, fmt.Errorf("decode event: %w", err)
	}
	if e.ID == "" || e.Type == "" || e.State == "" || e.Seq < 1 {
		return Event{}, fmt.Errorf("decode event: id %q, type %q, state %q, seq %d: each must be given", e.ID, e.Type, e.State, e.Seq)
	}
	return e, nil
}

// EncodeEvent writes an event. A result over [MaxEventResult] is left out and its size told instead.
func EncodeEvent(e Event) ([]byte, error) {
	if len(e.Result) > MaxEventResult {
		e.ResultSize, e.Result = len(e.Result), nil
	}
	return Encode(e)
}

// DecodeSignal reads a signal and checks that it names 1 to [MaxSignalTasks] tasks. Unknown fields are ignored.
func DecodeSignal(data []byte) (Signal, error) {
	var s Signal
	if err := json.Unmarshal(data, &s); err != nil {
		return Signal{}, fmt.Errorf("decode signal: %w", err)
	}
	if len(s.Tasks) == 0 || len(s.Tasks) > MaxSignalTasks {
		return Signal{}, fmt.Errorf("decode signal: %d tasks, want 1 to %d", len(s.Tasks), MaxSignalTasks)
	}
	for _, t := range s.Tasks {
		if t.ID == "" {
			return Signal{}, fmt.Errorf("decode signal: a task without id")
		}
	}
	return s, nil
}

// EncodeSignal writes a signal. It is on the hot path, hence by hand: ids have an alphabet that needs no escaping in JSON.
func EncodeSignal(s Signal) []byte {
	b := make([]byte, 0, 16+72*len(s.Tasks))
	b = append(b, `{"tasks":[`...)
	for i, t := range s.Tasks {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":"`...)
		b = append(b, t.ID...)
		b = append(b, `","seq":`...)
		b = strconv.AppendInt(b, t.Seq, 10)
		b = append(b, `,"attempt":`...)
		b = strconv.AppendInt(b, int64(t.Attempt), 10)
		b = append(b, `,"at":`...)
		b = strconv.AppendInt(b, t.At, 10)
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

// Encode writes a body. Raw members keep the text of their numbers and strings; only white space between them is dropped.
// It fails for a raw member that is not JSON.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // bodies are not put into HTML, and payloads should come out as they went in
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
