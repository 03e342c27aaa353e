package intake

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// hash tells a repeat of a submission from another one under the same id: "v1:" and the SHA-256 of the type and of the body
// as it was sent, without its id, its keys sorted and its numbers kept as text. A delay is not resolved and no default filled
// in, so a repeat has the same hash at any time and under any version. It does not matter whether the id stands in the body
// or was made here: whoever was told an id beside an error may ask again with it.
func hash(sub *events.Submit, from Origin) (string, error) {
	body := from.Body
	if body == nil {
		encoded, err := events.Encode(sub)
		if err != nil {
			return "", notJSON(sub.Payload)
		}
		body = encoded
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var members map[string]any
	if err := decoder.Decode(&members); err != nil {
		return "", &events.Error{Code: events.CodeInvalid, Allowed: "a JSON object", Message: fmt.Sprintf("the body is not a JSON object: %s", err)}
	}
	// An empty id is a variable that was not filled in: it would make a new task each time where the caller counts on one.
	if id, ok := members["id"]; ok && id == "" {
		return "", task.ValidateID("")
	}
	delete(members, "type")
	delete(members, "id")
	text := append(make([]byte, 0, len(from.Type)+1+len(body)), from.Type...)
	sum := sha256.Sum256(appendCanonical(append(text, '\n'), members))
	return "v1:" + hex.EncodeToString(sum[:]), nil
}

// appendCanonical writes a decoded JSON value in the one form that is hashed: keys sorted, no white space, numbers as they
// were written, and in strings nothing escaped but quotes, backslashes and control characters. It is written out here because
// what a library escapes changes with its versions, and stored hashes must not.
func appendCanonical(dst []byte, value any) []byte {
	switch v := value.(type) {
	case bool:
		return strconv.AppendBool(dst, v)
	case json.Number:
		return append(dst, v...)
	case string:
		return appendString(dst, v)
	case []any:
		dst = append(dst, '[')
		for i, item := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendCanonical(dst, item)
		}
		return append(dst, ']')
	case map[string]any:
		dst = append(dst, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, key), ':')
			dst = appendCanonical(dst, v[key])
		}
		return append(dst, '}')
	default: // nil; the decoder makes nothing else
		return append(dst, "null"...)
	}
}

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = fmt.Appendf(dst, "\\u%04x", c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
