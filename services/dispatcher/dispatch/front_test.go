package dispatch

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/task"
)

type ctx = context.Context

var day = time.Date(2030, 5, 1, 0, 0, 0, 0, time.UTC)

func emailLane(l task.Lane) Lane { return Lane{Type: "email", Channel: task.ChannelStable, Lane: l} }

// Whatever was inserted, claimed or moved in between, a read returns exactly what stands first and is not in flight.
func TestFrontReadsInExactOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMemory()
		var f front
		now := day
		flying := map[string]bool{}
		n := 0
		insert := func(count int, spread time.Duration) {
			for range count {
				n++
				back := time.Duration(rapid.Int64Range(0, int64(spread/time.Millisecond)).Draw(t, "back")) * time.Millisecond
				m.tasks[fmt.Sprint(n)] = task.Candidate{ID: fmt.Sprint(n), Type: "email", Channel: "stable", Priority: 5, ScheduledAt: now.Add(-back), Seq: 1}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert new":  func(t *rapid.T) { insert(rapid.IntRange(1, 20).Draw(t, "n"), 50*time.Millisecond) },
			"insert old":  func(t *rapid.T) { insert(rapid.IntRange(1, 20).Draw(t, "n"), 72*time.Hour) },
			"insert pile": func(t *rapid.T) { insert(rapid.IntRange(20, 60).Draw(t, "n"), 0) },
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 5_000_000).Draw(t, "ms")) * time.Millisecond)
			},
			"clock goes back": func(t *rapid.T) {
				now = now.Add(-time.Duration(rapid.IntRange(1, 5_000).Draw(t, "ms")) * time.Millisecond)
			},
			"claim": func(t *rapid.T) {
				ids := make([]string, 0, len(flying))
				for id := range flying {
					ids = append(ids, id)
				}
				slices.Sort(ids)
				for _, id := range ids[:len(ids)/2] {
					delete(flying, id)
					delete(m.tasks, id)
				}
			},
			"read": func(t *rapid.T) {
				want := rapid.IntRange(1, 40).Draw(t, "want")
				end := now.Add(time.Millisecond)
				expect := m.sorted(func(c task.Candidate) bool { return c.ScheduledAt.Before(end) && !flying[c.ID] }, want)
				total := len(m.sorted(func(c task.Candidate) bool { return c.ScheduledAt.Before(end) && !flying[c.ID] }, 1<<20))
				before := m.reads
				got, more, err := f.read(t.Context(), m, query{lane: emailLane(task.Normal), priority: 5, want: want, held: len(flying), end: end, whole: true},
					func(c *task.Candidate) bool { return flying[c.ID] })
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, expect) {
					t.Fatalf("got %v, want %v", got, expect)
				}
				if !more && total > len(got) {
					t.Fatalf("said that nothing is left beside %d of %d", len(got), total)
				}
				if reads := m.reads - before; reads > 45 {
					t.Fatalf("%d reads for one answer", reads)
				}
				for _, c := range got {
					flying[c.ID] = true
				}
			},
		})
	})
}

// The cost of a read does not depend on how much lies behind it: windows close in on what is wanted.
func TestFrontReadsLittle(t *testing.T) {
	m := newMemory()
	for i := range 20_000 {
		c := task.Candidate{ID: fmt.Sprintf("%05d", i), Type: "email", Channel: "stable", Priority: 5, ScheduledAt: day.Add(time.Duration(i) * 10 * time.Millisecond), Seq: 1}
		m.tasks[c.ID] = c
	}
	count := &counting{Backlog: m}
	var f front
	rounds := 20
	for round := range rounds {
		got, more, err := f.read(t.Context(), count, query{lane: emailLane(task.Normal), priority: 5, want: 50, end: day.Add(time.Hour)},
			func(c *task.Candidate) bool { return false })
		require.NoError(t, err)
		require.True(t, more)
		require.Equal(t, fmt.Sprintf("%05d", round*50), got[0].ID)
		for _, c := range got {
			delete(m.tasks, c.ID)
		}
	}
	require.LessOrEqual(t, count.windows, 2*rounds, "windows read")
	require.LessOrEqual(t, count.inWindow, 4*50*rounds, "tasks that lay in the windows, whatever the limit")
	require.Equal(t, 1, count.fronts, "the slow question is asked once")
}

// counting counts what a server would have to look at if a limit did not bound its reads.
type counting struct {
	Backlog
	windows, inWindow, fronts int
}

func (c *counting) Candidates(ctx ctx, w task.Window) ([]task.Candidate, error) {
	c.windows++
	all := w
	all.Limit = 1 << 20
	page, err := c.Backlog.Candidates(ctx, all)
	c.inWindow += len(page)
	return page[:min(len(page), w.Limit)], err
}

func (c *counting) Front(ctx ctx, taskType, channel string, priority int) (time.Time, bool, error) {
	c.fronts++
	return c.Backlog.Front(ctx, taskType, channel, priority)
}

func TestFrontIsFoundAgainBehindItself(t *testing.T) {
	m := newMemory()
	f := front{at: day}
	for i := range 300 { // an operator moved many old tasks into this priority
		c := task.Candidate{ID: fmt.Sprintf("%03d", i), Type: "email", Channel: "stable", Priority: 5, ScheduledAt: day.Add(-time.Hour + time.Duration(i)*time.Second), Seq: 2}
		m.tasks[c.ID] = c
	}
	var order []string
	for more := true; more; {
		var got []task.Candidate
		var err error
		got, more, err = f.read(t.Context(), m, query{lane: emailLane(task.Normal), priority: 5, want: 64, end: day.Add(time.Minute), whole: true},
			func(c *task.Candidate) bool { return false })
		require.NoError(t, err)
		for _, c := range got {
			order = append(order, c.ID)
			delete(m.tasks, c.ID)
		}
	}
	require.Len(t, order, 300)
	require.True(t, slices.IsSorted(order))
}

func TestScanReachesTheEndThroughPiles(t *testing.T) {
	m := newMemory()
	for i := range 3_000 {
		c := task.Candidate{ID: fmt.Sprintf("%05d", i), Type: "email", Channel: "stable", ScheduledAt: day, Seq: 1}
		if i >= 2_500 {
			c.ScheduledAt = day.Add(time.Duration(i) * time.Second)
		}
		m.tasks[c.ID] = c
	}
	var width span
	end := day.Add(24 * time.Hour)
	through := scan{pos: day.Add(-time.Hour), end: end, span: &width}
	seen := map[string]bool{}
	steps := 0
	for done := false; !done; steps++ {
		from, to, limit := through.window()
		page, err := m.Due(t.Context(), from, to, limit)
		require.NoError(t, err)
		for _, c := range page {
			seen[c.ID] = true
		}
		done = through.step(page, to)
		require.Less(t, steps, 60)
	}
	require.Len(t, seen, 3_000)
}

func BenchmarkFrontRead(b *testing.B) {
	page := make([]task.Candidate, 129)
	for i := range page {
		page[i] = task.Candidate{ID: fmt.Sprint(i), Priority: 5, ScheduledAt: day.Add(time.Duration(i) * time.Millisecond)}
	}
	store := fixedPage{page: page}
	f := front{at: day}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := f.read(b.Context(), store, query{lane: emailLane(task.Normal), priority: 5, want: 64, held: 64, end: day.Add(time.Minute)},
			func(c *task.Candidate) bool { return c.ScheduledAt.Before(day.Add(64 * time.Millisecond)) }); err != nil {
			b.Fatal(err)
		}
	}
}

type fixedPage struct {
	Backlog
	page []task.Candidate
}

func (f fixedPage) Candidates(ctx, task.Window) ([]task.Candidate, error) { return f.page, nil }
