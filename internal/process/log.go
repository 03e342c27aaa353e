package process

import (
	"io"
	"log/slog"
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
	return slog.New(handler).With("component", service)
}

// wallTime gives log lines the time of Wall, so that a host whose clock is off can be imitated whole.
func wallTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
		a.Value = slog.TimeValue(a.Value.Time().Add(wallOffset()))
	}
	return a
}
