package process

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Variable describes one environment variable, for messages and for the documentation.
type Variable struct {
	Name        string `json:"name"`              // with its prefix: AX_STOP_TIMEOUT
	Default     string `json:"default,omitempty"` // "" when there is none
	Range       string `json:"range"`             // what is allowed, in words
	Description string `json:"description"`
	Required    bool   `json:"required,omitempty"`
	Secret      bool   `json:"secret,omitempty"` // the value is never shown
	Shared      bool   `json:"shared,omitempty"` // of Common or WithNATS: it means the same to every service
}

// Variables lists the variables of a service's configuration in the order of its fields; spec is a pointer to the
// struct. It panics when the struct's tags are wrong, which is a mistake in the program.
func Variables(service string, spec any) []Variable {
	fields, err := gather(service, spec)
	if err != nil {
		panic(err)
	}
	out := make([]Variable, len(fields))
	for i, f := range fields {
		out[i] = f.Variable
	}
	return out
}

// field is a variable and the place it is stored in.
type field struct {
	Variable
	value  reflect.Value
	tag    reflect.StructTag
	lo, hi number
}

// number is a bound of a duration or a number.
type number struct {
	set   bool
	value float64
}

var (
	durationType = reflect.TypeFor[time.Duration]()
)

// sharedNames are the variables of Common and WithNATS.
var sharedNames = func() map[string]bool {
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[WithNATS]()) {
		if !f.Anonymous {
			names[prefix+"_"+f.Tag.Get("envconfig")] = true
		}
	}
	return names
}()

func gather(service string, spec any) ([]field, error) {
	v := reflect.ValueOf(spec)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("configuration of the %s: %T is not a pointer to a struct", service, spec)
	}
	fields, err := gatherStruct(service, v.Elem())
	if err != nil {
		return nil, fmt.Errorf("configuration of the %s: %w", service, err)
	}
	return fields, nil
}

func gatherStruct(service string, v reflect.Value) ([]field, error) {
	var out []field
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		if sf.Anonymous && sf.Type.Kind() == reflect.Struct {
			inner, err := gatherStruct(service, v.Field(i))
			if err != nil {
				return nil, err
			}
			out = append(out, inner...)
			continue
		}
		if !sf.IsExported() {
			continue
		}
		f, err := newField(service, v.Field(i), sf)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", sf.Name, err)
		}
		out = append(out, f)
	}
	return out, nil
}

func newField(service string, v reflect.Value, sf reflect.StructField) (field, error) {
	name := sf.Tag.Get("envconfig")
	if name == "" || name != strings.ToUpper(name) {
		return field{}, fmt.Errorf("needs a tag envconfig:\"NAME\" in capitals")
	}
	f := field{value: v, tag: sf.Tag, Variable: Variable{
		Name:        prefix + "_" + name,
		Default:     sf.Tag.Get("default"),
		Description: sf.Tag.Get("desc"),
		Required:    sf.Tag.Get("required") == "true",
		Secret:      sf.Tag.Get("secret") == "true",
	}}
	f.Shared = sharedNames[f.Name]
	// Services share one environment: a variable that is not everybody's must say whose it is, or the others refuse it.
	if !f.Shared && !strings.HasPrefix(f.Name, ownPrefix(service)) {
		return field{}, fmt.Errorf("%s must begin with %s", f.Name, ownPrefix(service))
	}
	if f.Name == prefix+"_HTTP_ADDR" {
		f.Default = cmp.Or(f.Default, v.String(), defaultHTTPAddr(service))
	}
	if f.Required && v.Kind() != reflect.String {
		return field{}, fmt.Errorf("only a text can be required; give it a default")
	}
	if f.numeric() {
		var err error
		if f.lo, err = f.bound("min"); err != nil {
			return field{}, err
		}
		if f.hi, err = f.bound("max"); err != nil {
			return field{}, err
		}
	}
	f.Range = f.allowed()
	return f, nil
}

func (f field) numeric() bool {
	switch f.value.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return true
	}
	return false
}

func (f field) bound(tag string) (number, error) {
	text, ok := f.tag.Lookup(tag)
	if !ok {
		return number{}, nil
	}
	if f.value.Type() == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return number{}, fmt.Errorf("tag %s: %w", tag, err)
		}
		return number{set: true, value: float64(d)}, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return number{}, fmt.Errorf("tag %s: %w", tag, err)
	}
	return number{set: true, value: n}, nil
}

// inRange tells whether the stored value is allowed.
func (f field) inRange() bool {
	if choices := f.tag.Get("oneof"); choices != "" {
		for c := range strings.SplitSeq(choices, ",") {
			if f.value.String() == c {
				return true
			}
		}
		return false
	}
	if !f.numeric() {
		return true
	}
	var n float64
	switch {
	case f.value.CanInt():
		n = float64(f.value.Int())
	case f.value.CanUint():
		n = float64(f.value.Uint())
	default:
		n = f.value.Float()
	}
	if f.lo.set && n < f.lo.value || !f.lo.set && n <= 0 {
		return false
	}
	return !f.hi.set || n <= f.hi.value
}

// anyText is the range of a variable that takes whatever it is given.
const anyText = "a text"

// allowed says in words what the variable takes.
func (f field) allowed() string {
	if choices := f.tag.Get("oneof"); choices != "" {
		return "one of " + strings.ReplaceAll(choices, ",", ", ")
	}
	var kind string
	switch {
	case f.value.Type() == durationType:
		kind = "a duration with a unit (such as 500ms, 30s or 5m)"
	case f.value.CanInt(), f.value.CanUint():
		kind = "a whole number"
	case f.value.CanFloat():
		kind = "a number"
	case f.value.Kind() == reflect.Bool:
		return "true or false"
	case f.value.Kind() == reflect.Slice:
		return "values separated by commas"
	default:
		return anyText
	}
	low, high := f.tag.Get("min"), f.tag.Get("max")
	switch {
	case f.lo.set && f.hi.set:
		return fmt.Sprintf("%s from %s to %s", kind, low, high)
	case f.lo.set:
		return fmt.Sprintf("%s, at least %s", kind, low)
	case f.hi.set:
		return fmt.Sprintf("%s above 0 and at most %s", kind, high)
	default:
		return kind + " above 0"
	}
}
