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
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// hash tells a repeat of a submission from another one under the same id: "v1:" and the SHA-256 of the type and of the body
// as it was sent, without its id, its keys sorted and its numbers kept as text. A delay is not resolved and no default filled
// in, so a repeat has the same hash at any time and under any version. It does not matter whether the id stands in the body
// or was made here: whoever was told an id beside an error may ask again with it. A payload that loses something when it is decoded
// (see ambiguous) counts with its text as well.
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
	text = appendCanonical(append(text, '\n'), members)
	if ambiguous(sub.Payload, members["payload"]) {
		asSent, err := compact(sub.Payload)
		if err != nil {
			return "", err
		}
		text = append(append(text, '\n'), asSent...)
	}
	sum := sha256.Sum256(text)
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

// ambiguous tells whether decoding a payload loses what would tell it from another one: members whose name stands in an object
// before, and halves of surrogate pairs, which all become U+FFFD.
func ambiguous(payload []byte, decoded any) bool {
	names := 0 // each is followed by the only colons outside of strings
	inside := false
	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case c == '"':
			inside = !inside
		case c == ':' && !inside:
			names++
		case c == '\\' && payload[i+1] == 'u': // the payload is valid JSON: four digits follow
			i += 5
			switch unit := escaped(payload[i-3:]); {
			case !utf16.IsSurrogate(unit):
			case len(payload) > i+6 && payload[i+1] == '\\' && payload[i+2] == 'u' && utf16.DecodeRune(unit, escaped(payload[i+3:])) != utf8.RuneError:
				i += 6
			default:
				return true
			}
		case c == '\\':
			i++
		}
	}
	return names != countMembers(decoded)
}

// escaped reads the four hexadecimal digits of an escape.
func escaped(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 16) // valid JSON has nothing else there
	return rune(n)
}

func countMembers(value any) (n int) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			n += countMembers(item)
		}
	case map[string]any:
		n = len(v)
		for _, item := range v {
			n += countMembers(item)
		}
	}
	return n
}
