package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Decode reads one JSON object into the struct that into points to, strictly: an empty body, text after the object, an
// unknown or repeated field and a value of another type (null included) are refused with an [*Error] of code invalid that
// names the field, the value and what is allowed. Field names are case-sensitive. Members of type json.RawMessage are
// copied as they stand. Nesting deeper than 10,000 levels is refused, and no depth costs stack.
func Decode(data []byte, into any) error {
	if err := checkBody(data); err != nil {
		return err
	}
	if err := decodeStruct(bytes.TrimSpace(data), reflect.ValueOf(into).Elem(), ""); err != nil {
		return err
	}
	return nil
}

// wholeBody stands as the field where it is not one member that is refused.
const wholeBody = "body"

// checkBody makes sure that what follows walks over one valid JSON object only.
func checkBody(data []byte) *Error {
	text := bytes.TrimSpace(data)
	switch {
	case len(text) == 0:
		return &Error{Code: CodeInvalid, Field: wholeBody, Allowed: "a JSON object", Message: `the body is empty; send a JSON object such as {"payload":{"to":"a@example.com"}}, or {} for a task without payload`}
	case !utf8.Valid(text):
		return &Error{Code: CodeInvalid, Field: wholeBody, Value: Shorten(strings.ToValidUTF8(string(text), "\uFFFD")), Allowed: "a JSON object in UTF-8",
			Message: "the body is not valid UTF-8; send a JSON object in UTF-8"}
	case !json.Valid(text):
		var sink json.RawMessage
		err := json.Unmarshal(text, &sink)
		message := "the body is not valid JSON"
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			message = fmt.Sprintf("%s: %s, at byte %d", message, syntax, syntax.Offset)
		}
		return &Error{Code: CodeInvalid, Field: wholeBody, Value: Shorten(string(text)), Allowed: "one JSON object", Message: message + "; send one JSON object"}
	case text[0] != '{':
		return &Error{Code: CodeInvalid, Field: wholeBody, Value: Shorten(string(text)), Allowed: "a JSON object",
			Message: "the body is not a JSON object; send one such as {\"payload\":...}"}
	}
	return nil
}

// decodeStruct reads a valid JSON object. prefix is the path of the object with a dot behind it, or empty.
func decodeStruct(object []byte, into reflect.Value, prefix string) error {
	known := fieldsOf(into.Type())
	seen := make(map[string]bool, 8)
	return members(object, func(name string, value []byte) error {
		field, ok := known.byName[name]
		switch {
		case !ok:
			return unknownField(prefix, name, known.names)
		case seen[name]:
			return Invalid(prefix+name, Shorten(string(value)), "each field once")
		}
		seen[name] = true
		return decodeValue(value, into.FieldByIndex(field.index), prefix+name, field.allowed)
	})
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

func decodeValue(value []byte, into reflect.Value, path, allowed string) error {
	t := into.Type()
	if t == rawMessage {
		into.SetBytes(bytes.Clone(value))
		return nil
	}
	refused := func() error { return Invalid(path, Shorten(string(value)), allowed) }
	if value[0] == 'n' { // null; nothing else begins with n
		return refused()
	}
	switch {
	case t.Kind() == reflect.Pointer:
		into.Set(reflect.New(t.Elem()))
		return decodeValue(value, into.Elem(), path, allowed)
	case t.Kind() == reflect.Struct:
		if value[0] != '{' {
			return refused()
		}
		return decodeStruct(value, into, path+".")
	case t.Kind() == reflect.Slice && value[0] == '[':
		var items []json.RawMessage
		if err := json.Unmarshal(value, &items); err != nil {
			return refused()
		}
		into.Set(reflect.MakeSlice(t, len(items), len(items)))
		for i, item := range items {
			if err := decodeValue(item, into.Index(i), path+"["+strconv.Itoa(i)+"]", allowedFor(t.Elem())); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() == reflect.Map && value[0] == '{':
		into.Set(reflect.MakeMap(t))
		return members(value, func(name string, value []byte) error {
			key := reflect.ValueOf(name)
			if into.MapIndex(key).IsValid() {
				return Invalid(path+"."+name, Shorten(string(value)), "each name once")
			}
			element := reflect.New(t.Elem()).Elem()
			if err := decodeValue(value, element, path+"."+name, allowedFor(t.Elem())); err != nil {
				return err
			}
			into.SetMapIndex(key, element)
			return nil
		})
	}
	if err := json.Unmarshal(value, into.Addr().Interface()); err != nil {
		return refused()
	}
	return nil
}

// Invalid refuses one field: its path in the body, what it held, and what would be accepted, as a phrase.
func Invalid(field, value, allowed string) *Error {
	return &Error{Code: CodeInvalid, Field: field, Value: value, Allowed: allowed,
		Message: fmt.Sprintf("field %s: %s is not allowed; give %s", field, value, allowed)}
}

func unknownField(prefix, name string, known []string) *Error {
	e := &Error{Code: CodeInvalid, Field: Shorten(prefix + name), Value: Shorten(name), Allowed: strings.Join(known, ", ")}
	if near := nearest(name, known); near != "" {
		e.Allowed = near
		e.Message = fmt.Sprintf("field %s is unknown; did you mean %s?", e.Field, near)
		return e
	}
	e.Message = fmt.Sprintf("field %s is unknown; the fields are %s", e.Field, e.Allowed)
	return e
}

const shownValue = 64

// Shorten keeps a value short enough for a sentence: at most 64 bytes and three dots, cut between characters.
func Shorten(s string) string {
	if len(s) <= shownValue {
		return s
	}
	end := shownValue
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// fields are the JSON members of a struct type, promoted ones of embedded structs included.
type fields struct {
	names  []string
	byName map[string]field
}

type field struct {
	index   []int
	allowed string // what to give, as a phrase
}

var fieldCache sync.Map // reflect.Type -> *fields

func fieldsOf(t reflect.Type) *fields {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.(*fields)
	}
	f := &fields{byName: map[string]field{}}
	for _, sf := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if sf.Anonymous || name == "" || name == "-" {
			continue
		}
		allowed := sf.Tag.Get("allowed")
		if allowed == "" {
			allowed = allowedFor(sf.Type)
		}
		f.names = append(f.names, name)
		f.byName[name] = field{index: sf.Index, allowed: allowed}
	}
	fieldCache.Store(t, f)
	return f
}

// allowedFor names the JSON type that a Go type takes.
func allowedFor(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return allowedFor(t.Elem())
	case reflect.String:
		return "a string in double quotes, or leave it out"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "a whole number, or leave it out"
	case reflect.Float64:
		return "a number, or leave it out"
	case reflect.Bool:
		return "true or false, or leave it out"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.String {
			return "a list of strings, or leave it out"
		}
		return "a list of objects"
	case reflect.Map:
		return "an object whose values are strings, or leave it out"
	default:
		return "an object, or leave it out"
	}
}
