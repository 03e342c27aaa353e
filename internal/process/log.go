package process

import (
	"io"
	"log/slog"
	"slices"
)

// newLogger writes lines in the form and from the level that c names; unknown ones count as text and info.
func newLogger(out io.Writer, service string, c Common) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: wallTime}
	var handler slog.Handler = slog.NewTextHandler(out, options)
	if c.LogFormat == "json" {
		handler = slog.NewJSONHandler(out, options)
	}
	return slog.New(&componentHandler{Handler: handler, base: handler}).With(component, service)
}

// component is the key that tells which part of ax says a line.
const component = "component"

// componentHandler joins the components of a logger and those derived from it into one value, notifier/lead: the same key twice
// in a line is ambiguous as text and lost as JSON. A group ends the joining: a component in a group is another thing.
type componentHandler struct {
	slog.Handler              // writes the lines
	base         slog.Handler // the same without attributes
	path         string       // the components joined so far
	attrs        []slog.Attr  // all others
}

func (h *componentHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := &componentHandler{base: h.base, path: h.path, attrs: slices.Clone(h.attrs)}
	for _, a := range attrs {
		switch {
		case a.Key != component:
			next.attrs = append(next.attrs, a)
		case next.path == "":
			next.path = a.Value.String()
		default:
			next.path += "/" + a.Value.String()
		}
	}
	next.Handler = h.base.WithAttrs(append([]slog.Attr{slog.String(component, next.path)}, next.attrs...))
	return next
}

// wallTime gives log lines the time of Wall, so that a host whose clock is off can be imitated whole.
func wallTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
		a.Value = slog.TimeValue(a.Value.Time().Add(wallOffset()))
	}
	return a
}
