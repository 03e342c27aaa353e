package cronexpr

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The oracle knows nothing of stretches, bit sets or jumps: it walks through time second by second (or minute by minute),
// looks at the clock on the wall, and asks for each field whether the number is among those that were drawn.

type drawnField struct {
	text    string
	members [60]bool
	star    bool // * or ?: leaves the choice of the day to the other day field
	leading bool // begins with * or ?
}

func drawField(r *rand.Rand, low, high int) drawnField {
	if r.IntN(3) == 0 {
		return drawnField{[]string{"*", "?"}[r.IntN(8)/7], spread(low, high), true, true}
	}
	var f drawnField
	var parts []string
	for i := range 1 + r.IntN(3) {
		a, b := low+r.IntN(high-low+1), low+r.IntN(high-low+1)
		a, b = min(a, b), max(a, b)
		step := 1 + r.IntN(high-low)
		switch r.IntN(4) {
		case 0:
			parts = append(parts, fmt.Sprint(a))
			f.members[a] = true
		case 1:
			parts = append(parts, fmt.Sprintf("%d-%d", a, b))
			f.add(a, b, 1)
		case 2:
			parts = append(parts, fmt.Sprintf("%d-%d/%d", a, b, step))
			f.add(a, b, step)
		default:
			step = max(step, 2) // "*/1" is "*"
			parts = append(parts, fmt.Sprintf("*/%d", step))
			f.add(low, high, step)
			f.leading = f.leading || i == 0
		}
	}
	f.text = strings.Join(parts, ",")
	return f
}

func (f *drawnField) add(a, b, step int) {
	for ; a <= b; a += step {
		f.members[a] = true
	}
}

func spread(a, b int) [60]bool {
	var f drawnField
	f.add(a, b, 1)
	return f.members
}

type drawn struct {
	text                                  string
	second, minute, hour, dom, month, dow drawnField
}

func draw(r *rand.Rand, seconds bool) drawn {
	d := drawn{
		second: drawnField{"0", spread(0, 0), false, false},
		minute: drawField(r, 0, 59), hour: drawField(r, 0, 23),
		dom: drawField(r, 1, 31), month: drawnField{"*", spread(1, 12), true, true}, dow: drawField(r, 0, 6),
	}
	if r.IntN(4) == 0 {
		d.month = drawField(r, 1, 12)
	}
	d.text = strings.Join([]string{d.minute.text, d.hour.text, d.dom.text, d.month.text, d.dow.text}, " ")
	if seconds {
		d.second = drawField(r, 0, 59)
		d.text = d.second.text + " " + d.text
	}
	return d
}

func (d *drawn) matches(wall time.Time) bool {
	hour, minute, second := wall.Clock()
	if !d.second.members[second] || !d.minute.members[minute] || !d.hour.members[hour] || !d.month.members[wall.Month()] {
		return false
	}
	dom, dow := d.dom.members[wall.Day()], d.dow.members[wall.Weekday()]
	if d.dom.star || d.dow.star {
		return dom && dow
	}
	return dom || dow
}

// walk lists the slots in (from, to].
func (d *drawn) walk(loc *time.Location, from, to time.Time, step time.Duration) (all []time.Time) {
	wallOf := func(t time.Time) time.Time {
		_, offset := t.In(loc).Zone()
		return t.UTC().Add(time.Duration(offset) * time.Second)
	}
	// A repeated hour that began before from must be recognised as one.
	begin := from.Add(-3 * time.Hour)
	shown := wallOf(begin)
	for t := begin; !t.After(to); t = t.Add(step) {
		wall := wallOf(t)
		fires := false
		if d.minute.leading || d.hour.leading {
			fires = d.matches(wall)
		} else {
			for ; shown.Before(wall); shown = shown.Add(step) { // all that the clock shows now or has skipped
				fires = fires || d.matches(shown.Add(step))
			}
		}
		if fires && t.After(from) {
			all = append(all, t.UTC())
		}
	}
	return all
}

func TestAgainstTheOracle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	places := []struct{ zone, from string }{ // each a few days before a change of the clock
		{"UTC", "2026-02-26T00:00:00Z"},
		{"America/New_York", "2026-03-06T12:00:00Z"}, {"America/New_York", "2026-10-30T12:00:00Z"},
		{"Europe/London", "2026-03-27T12:00:00Z"}, {"Europe/London", "2026-10-23T12:00:00Z"},
		{"Australia/Lord_Howe", "2026-10-02T12:00:00Z"}, {"Australia/Lord_Howe", "2026-04-03T12:00:00Z"},
		{"America/Sao_Paulo", "2018-11-02T12:00:00Z"}, {"America/Sao_Paulo", "2018-02-16T12:00:00Z"},
		{"Pacific/Apia", "2011-12-29T00:00:00Z"}, {"Asia/Kolkata", "2026-12-30T00:00:00Z"},
		{"America/Havana", "2026-10-30T12:00:00Z"}, // repeats the hour after midnight
	}
	const rounds = 300
	fired := 0
	for i := range rounds {
		place := places[i%len(places)]
		seconds := i%5 == 0
		window, step := 4*24*time.Hour, time.Minute
		if seconds {
			window, step = 3*time.Hour, time.Second
		}
		d := draw(r, seconds)
		loc, err := time.LoadLocation(place.zone)
		require.NoError(t, err)
		s, err := Parse(d.text, place.zone)
		if err != nil {
			require.ErrorContains(t, err, "would never fire", d.text)
			continue
		}
		from, err := time.Parse(time.RFC3339, place.from)
		require.NoError(t, err)
		if seconds {
			from = from.Add(time.Duration(12+3*r.IntN(12)) * time.Hour)
		}
		to := from.Add(window)
		want := d.walk(loc, from, to, step)
		var got []time.Time
		for at := s.Next(from); !at.IsZero() && !at.After(to); at = s.Next(at) {
			got = append(got, at)
			require.LessOrEqual(t, len(got), len(want)+1, "%q in %s after %s goes on at %s", d.text, place.zone, from, at)
		}
		require.Equal(t, want, got, "%q in %s from %s", d.text, place.zone, from)
		fired += len(got)
	}
	require.Greater(t, fired, rounds, "the drawn schedules hardly ever fire")
}
