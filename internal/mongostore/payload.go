package mongostore

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

const (
	maxPayloadDepth = 64      // the server allows 100 levels in a document
	maxPayloadBSON  = 1 << 20 // an array of small numbers takes several times its JSON in BSON
)

// appendPayload appends the JSON value as BSON element payload when reading that back gives the same value, order of keys and
// text of numbers, so that operators can filter by it; else as string payloadRaw. A nil payload appends nothing.
func appendPayload(dst []byte, payload json.RawMessage) []byte {
	if payload == nil {
		return dst
	}
	if out, ok := appendExact(dst, payload); ok {
		return out
	}
	// Broken UTF-8 is refused at every door. Should it come here all the same, it must not make the server refuse the other
	// tasks of the command.
	return bsoncore.AppendStringElement(dst, "payloadRaw", strings.ToValidUTF8(string(payload), "\uFFFD"))
}

// appendExact reads the JSON once and writes BSON as it goes. It gives up (false) at the first thing that would not come back
// as it went in, or that BSON cannot hold.
func appendExact(dst []byte, payload json.RawMessage) ([]byte, bool) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	e := exactEncoder{dec: d, start: len(dst)}
	out, ok := e.value(dst, "payload", 0)
	if !ok || len(out)-len(dst) > maxPayloadBSON {
		return nil, false
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, false // something follows the value
	}
	return out, true
}

type exactEncoder struct {
	dec   *json.Decoder
	start int
}

func (e *exactEncoder) value(dst []byte, key string, depth int) ([]byte, bool) {
	tok, err := e.dec.Token()
	if err != nil || len(dst)-e.start > maxPayloadBSON {
		return nil, false
	}
	switch v := tok.(type) {
	case nil:
		return bsoncore.AppendNullElement(dst, key), true
	case bool:
		return bsoncore.AppendBooleanElement(dst, key, v), true
	case string:
		return bsoncore.AppendStringElement(dst, key, v), exactText(v)
	case json.Number:
		return appendExactNumber(dst, key, string(v))
	case json.Delim:
		if depth == maxPayloadDepth {
			return nil, false
		}
		if v == '{' {
			return e.object(dst, key, depth+1)
		}
		return e.array(dst, key, depth+1)
	}
	return nil, false
}

func (e *exactEncoder) object(dst []byte, key string, depth int) ([]byte, bool) {
	at, dst := bsoncore.AppendDocumentElementStart(dst, key)
	seen := make(map[string]struct{}, 8)
	for e.dec.More() {
		tok, err := e.dec.Token()
		name, isName := tok.(string)
		if err != nil || !isName || !plainName(name) {
			return nil, false
		}
		if _, twice := seen[name]; twice {
			return nil, false
		}
		seen[name] = struct{}{}
		var ok bool
		if dst, ok = e.value(dst, name, depth); !ok {
			return nil, false
		}
	}
	if _, err := e.dec.Token(); err != nil { // the closing brace
		return nil, false
	}
	dst, err := bsoncore.AppendDocumentEnd(dst, at)
	return dst, err == nil
}

func (e *exactEncoder) array(dst []byte, key string, depth int) ([]byte, bool) {
	at, dst := bsoncore.AppendArrayElementStart(dst, key)
	for i := 0; e.dec.More(); i++ {
		var ok bool
		if dst, ok = e.value(dst, strconv.Itoa(i), depth); !ok {
			return nil, false
		}
	}
	if _, err := e.dec.Token(); err != nil { // the closing bracket
		return nil, false
	}
	dst, err := bsoncore.AppendArrayEnd(dst, at)
	return dst, err == nil
}

// exactText refuses the replacement character: it is what the JSON reader makes of broken UTF-8 and of half a surrogate pair.
func exactText(s string) bool { return !strings.ContainsRune(s, '\uFFFD') }

// plainName accepts names that every server stores and that a filter can address. Others ($ref, a.b, the empty name) are legal
// JSON but mean something else to the server.
func plainName(s string) bool {
	return s != "" && s[0] != '$' && !strings.ContainsAny(s, ".\x00") && exactText(s)
}

func appendExactNumber(dst []byte, key, text string) ([]byte, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		if text == "-0" {
			return nil, false
		}
		if n >= math.MinInt32 && n <= math.MaxInt32 {
			return bsoncore.AppendInt32Element(dst, key, int32(n)), true
		}
		return bsoncore.AppendInt64Element(dst, key, n), true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || string(appendFloat(nil, f)) != text {
		return nil, false
	}
	return bsoncore.AppendDoubleElement(dst, key, f), true
}

// appendFloat writes the shortest decimal that reads back as f, with an exponent only where most JSON writers use one.
func appendFloat(dst []byte, f float64) []byte {
	format := byte('f')
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64)
}

// payloadJSON is the reverse of appendExact. Only the types that appendExact writes can occur.
func payloadJSON(v bsoncore.Value) json.RawMessage {
	return appendJSON(make([]byte, 0, len(v.Data)+16), v)
}

func appendJSON(dst []byte, v bsoncore.Value) []byte {
	switch v.Type {
	case bsoncore.TypeBoolean:
		return strconv.AppendBool(dst, v.Boolean())
	case bsoncore.TypeString:
		return appendQuoted(dst, v.StringValue())
	case bsoncore.TypeInt32:
		return strconv.AppendInt(dst, int64(v.Int32()), 10)
	case bsoncore.TypeInt64:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case bsoncore.TypeDouble:
		return appendFloat(dst, v.Double())
	case bsoncore.TypeEmbeddedDocument:
		return appendMembers(dst, v.Data, true)
	case bsoncore.TypeArray:
		return appendMembers(dst, v.Data, false)
	}
	return append(dst, "null"...)
}

func appendMembers(dst, doc []byte, named bool) []byte {
	open, end := byte('['), byte(']')
	if named {
		open, end = '{', '}'
	}
	dst = append(dst, open)
	rest := doc[4:] // after the length; the caller read the value, so its frame is sound
	for first := true; ; first = false {
		elem, after, ok := bsoncore.ReadElement(rest)
		if !ok {
			return append(dst, end)
		}
		rest = after
		if !first {
			dst = append(dst, ',')
		}
		if named {
			dst = append(appendQuoted(dst, elem.Key()), ':')
		}
		dst = appendJSON(dst, elem.Value())
	}
}

// appendQuoted writes a JSON string. Most need no escape.
func appendQuoted(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' {
			return appendEscaped(dst, s)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}

func appendEscaped(dst []byte, s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string into a buffer cannot fail
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}
