package events

import "time"

// Header holds the headers of a message. Names are case-sensitive, as in NATS. A message from outside may repeat a name.
type Header map[string][]string

// Get returns the first value of a header, or "" when there is none.
func (h Header) Get(name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set replaces all values of a header.
func (h Header) Set(name, value string) { h[name] = []string{value} }

const sourcePrefix = "/ax/"

// Meta is what the headers say about a message: the attributes of CloudEvents 1.0 in binary mode, and the W3C trace.
type Meta struct {
	ID          string    // ce-id
	Source      string    // ce-source, a URI reference; see [Source]
	Type        string    // ce-type, one of the Type constants
	Subject     string    // ce-subject, the task id where there is one
	Time        time.Time // ce-time; zero: left out
	Traceparent string    // "" : left out
}

// Source is the ce-source of a part of ax, such as "/ax/notifier".
func Source(part string) string { return sourcePrefix + part }

// Header builds the headers. Empty attributes are left out, except ce-specversion, which is always there.
func (m Meta) Header() Header {
	h := make(Header, 8)
	h.Set(HeaderCESpec, "1.0")
	for _, attribute := range [...]struct{ name, value string }{
		{HeaderCEID, m.ID}, {HeaderCESource, m.Source}, {HeaderCEType, m.Type}, {HeaderCESubject, m.Subject},
		{HeaderTraceparent, m.Traceparent},
	} {
		if attribute.value != "" {
			h.Set(attribute.name, attribute.value)
		}
	}
	if !m.Time.IsZero() {
		h.Set(HeaderCETime, FormatTime(m.Time))
	}
	return h
}

// MetaOf reads the headers of a message. It never fails: what is absent or malformed stays empty, of a repeated header
// the first value counts.
func MetaOf(h Header) Meta {
	m := Meta{
		ID: h.Get(HeaderCEID), Source: h.Get(HeaderCESource), Type: h.Get(HeaderCEType), Subject: h.Get(HeaderCESubject),
		Traceparent: h.Get(HeaderTraceparent),
	}
	if at, err := time.Parse(time.RFC3339Nano, h.Get(HeaderCETime)); err == nil {
		m.Time = at.UTC()
	}
	return m
}

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// FormatTime writes a time as every body and header does: RFC 3339 in UTC with milliseconds.
func FormatTime(t time.Time) string { return t.UTC().Format(timeFormat) }
