package events_test

import (
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/pkg/events"
)

// The values are fixed for ever: a submission redelivered across an upgrade must keep its id.
func TestDeriveIDIsStable(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 6_007_008, time.UTC)
	id := events.DeriveID(at, 42, "ax.submit.email")
	require.Equal(t, "01KDZKSEMEVWTEWEXE6FR2KNKR", id)
	require.Equal(t, id, events.DeriveID(at.In(time.FixedZone("x", 3600)), 42, "ax.submit.email"))

	parsed, err := ulid.ParseStrict(id)
	require.NoError(t, err)
	require.Equal(t, at.UnixMilli(), int64(parsed.Time()))

	for _, other := range []string{
		events.DeriveID(at.Add(1), 42, "ax.submit.email"), // the nanosecond counts, although the time shows milliseconds
		events.DeriveID(at, 43, "ax.submit.email"),
		events.DeriveID(at, 42, "ax.submit.emails"),
	} {
		require.NotEqual(t, id, other)
	}
	require.Len(t, events.DeriveID(time.Unix(-5, 0), 1, "x"), 26, "a time before 1970 is no reason to fail")
}

func TestIDsAndTokensAreUnique(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				id, token := events.NewID(), events.NewToken()
				mu.Lock()
				seen[id], seen[token] = true, true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 16_000)
	require.Regexp(t, regexp.MustCompile(`^[A-Z0-9]{26}$`), events.NewID())
	require.Regexp(t, regexp.MustCompile(`^[A-Z2-7]{26}$`), events.NewToken())
}

func TestMetaSurvivesHeaders(t *testing.T) {
	m := events.Meta{
		ID: "order-7:3", Source: events.Source("notifier"), Type: events.TypeTaskChanged, Subject: "order-7",
		Time: time.Date(2026, 1, 2, 15, 4, 5, 6_000_000, time.UTC), Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	h := m.Header()
	require.Equal(t, "1.0", h.Get(events.HeaderCESpec))
	require.Equal(t, "2026-01-02T15:04:05.006Z", h.Get(events.HeaderCETime))
	require.Equal(t, m, events.MetaOf(h))

	require.Equal(t, events.Header{events.HeaderCESpec: {"1.0"}}, events.Meta{}.Header())
	require.Equal(t, events.Meta{}, events.MetaOf(nil))
	require.Equal(t, events.Meta{ID: "a"}, events.MetaOf(events.Header{"ce-id": {"a", "b"}, "ce-time": {"soon"}, "ce-source": {}}))
}
