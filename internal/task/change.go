package task

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Change describes one transition completely enough to signal workers and publish events without reading the document. It
// is written into the document's change field in the same write as the transition, as one string whose value differs every
// time, so that it stands whole in the change stream's event.
type Change struct {
	Seq         int64
	Type        string
	Channel     string
	Priority    int
	From        State // empty for the insert
	To          State
	Reason      Reason
	Attempt     int
	Claim       string
	At          time.Time // the database's time of the write
	ScheduledAt time.Time
	By          string
	Echo        string // JSON; may contain bars, so it stands last
}

const changeParts = 13

// String gives seq|type|channel|priority|from|to|reason|attempt|claim|atMs|scheduledAtMs|by|echo.
func (c Change) String() string {
	var b strings.Builder
	b.Grow(128 + len(c.Echo))
	for i, part := range [...]string{
		strconv.FormatInt(c.Seq, 10), c.Type, c.Channel, strconv.Itoa(c.Priority), string(c.From), string(c.To),
		string(c.Reason), strconv.Itoa(c.Attempt), c.Claim, strconv.FormatInt(c.At.UnixMilli(), 10),
		strconv.FormatInt(c.ScheduledAt.UnixMilli(), 10), c.By, c.Echo,
	} {
		if i > 0 {
			b.WriteByte('|')
		}
		b.WriteString(part)
	}
	return b.String()
}

// ParseChange reads what [Change.String] wrote. It splits at the first 12 bars only.
func ParseChange(s string) (Change, error) {
	p := strings.SplitN(s, "|", changeParts)
	if len(p) != changeParts {
		return Change{}, fmt.Errorf("parse change: %d parts, want %d", len(p), changeParts)
	}
	var c Change
	var err error
	number := func(text string) int64 {
		n, e := strconv.ParseInt(text, 10, 64)
		if e != nil && err == nil {
			err = fmt.Errorf("parse change: %w", e)
		}
		return n
	}
	c.Seq = number(p[0])
	c.Type, c.Channel = p[1], p[2]
	c.Priority = int(number(p[3]))
	c.From, c.To, c.Reason = State(p[4]), State(p[5]), Reason(p[6])
	c.Attempt = int(number(p[7]))
	c.Claim = p[8]
	c.At = time.UnixMilli(number(p[9])).UTC()
	c.ScheduledAt = time.UnixMilli(number(p[10])).UTC()
	c.By, c.Echo = p[11], p[12]
	return c, err
}
