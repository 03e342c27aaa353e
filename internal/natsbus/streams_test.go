package natsbus_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

var allStreams = []string{events.StreamSubmit, events.StreamWork, events.StreamEvent, events.StreamDead}

func streamConfig(t *testing.T, b *natsbus.Bus, name string) jetstream.StreamConfig {
	t.Helper()
	stream, err := b.JS().Stream(deadline(t), name)
	require.NoError(t, err)
	return stream.CachedInfo().Config
}

func TestEnsureStreamsFollowsTheTable(t *testing.T) {
	b := connect(t, stacktest.NATS(t))
	anew, err := b.EnsureStreams(deadline(t))
	require.NoError(t, err)
	require.Equal(t, allStreams, anew)

	anew, err = b.EnsureStreams(deadline(t))
	require.NoError(t, err)
	require.Empty(t, anew, "nothing is new the second time")

	for _, want := range natsbus.Streams(natsbus.Sizes{}, 1) {
		have := streamConfig(t, b, want.Name)
		require.Equal(t, want.Subjects, have.Subjects)
		require.Equal(t, want.Retention, have.Retention)
		require.Equal(t, jetstream.FileStorage, have.Storage)
		require.Equal(t, want.Discard, have.Discard)
		require.Equal(t, want.MaxAge, have.MaxAge)
		require.Equal(t, want.MaxBytes, have.MaxBytes)
		require.Equal(t, 2*time.Minute, have.Duplicates)
	}
	submit := streamConfig(t, b, events.StreamSubmit)
	require.Zero(t, submit.MaxAge, "a submission waits as long as it must")
	require.Equal(t, jetstream.DiscardNew, submit.Discard, "and is never pushed out by newer ones")
	work := streamConfig(t, b, events.StreamWork)
	require.True(t, work.DiscardNewPerSubject)
	require.Positive(t, work.MaxMsgsPerSubject)
}

func TestEnsureStreamsBringsSettingsUpToDate(t *testing.T) {
	_, b := start(t)
	changed := streamConfig(t, b, events.StreamEvent)
	changed.MaxAge, changed.MaxBytes, changed.Compression = time.Hour, 1<<20, jetstream.S2Compression
	_, err := b.JS().UpdateStream(deadline(t), changed)
	require.NoError(t, err)
	publish(t, b, "ax.event.email.running", "kept")

	anew, err := b.EnsureStreams(deadline(t))
	require.NoError(t, err)
	require.Empty(t, anew)
	have := streamConfig(t, b, events.StreamEvent)
	require.Equal(t, 7*24*time.Hour, have.MaxAge)
	require.Equal(t, int64(512<<20), have.MaxBytes)
	require.Equal(t, jetstream.S2Compression, have.Compression, "what ax has no opinion about stays")
	require.Equal(t, []string{"kept"}, bodies(t, b, events.StreamEvent))
}

func TestEnsureStreamsLeavesAnotherRetentionAlone(t *testing.T) {
	b := connect(t, stacktest.NATS(t))
	_, err := b.JS().CreateStream(deadline(t), jetstream.StreamConfig{Name: events.StreamSubmit, Subjects: []string{"ax.submit.>"}})
	require.NoError(t, err)
	publish(t, b, "ax.submit.email", "kept")
	_, err = b.EnsureStreams(deadline(t))
	require.ErrorContains(t, err, "AX_SUBMIT")
	require.ErrorContains(t, err, "NATS cannot change that")
	require.Equal(t, []string{"kept"}, bodies(t, b, events.StreamSubmit))
}

func TestEnsureStreamsSaysWhenThereIsNoRoom(t *testing.T) {
	cramped := stacktest.NATS(t, func(o *localstack.NATSOptions) { o.MaxStore = 100 << 20 })
	_, err := connect(t, cramped).EnsureStreams(deadline(t))
	require.ErrorContains(t, err, "NATS has no room for its 256 MiB")

	small, err := natsbus.Connect(natsbus.Options{URL: cramped.URL(), Sizes: natsbus.Sizes{Submit: 10 << 20, Work: 10 << 20, Event: 10 << 20, Dead: 10 << 20}})
	require.NoError(t, err)
	t.Cleanup(small.Close)
	_, err = small.EnsureStreams(deadline(t))
	require.NoError(t, err)
}

func TestEnsureStreamsNeedsJetStream(t *testing.T) {
	b := connect(t, stacktest.NATS(t, func(o *localstack.NATSOptions) { o.NoJetStream = true }))
	_, err := b.EnsureStreams(deadline(t))
	require.ErrorContains(t, err, "start NATS with -js")
}

func TestWatchStreamsTellsWhatIsAnew(t *testing.T) {
	local, b := start(t)
	anew := watch(t, b)

	require.NoError(t, local.Wipe(deadline(t)))
	stacktest.Eventually(t, patience, "all streams are there again and reported", func() bool { return len(anew()) == 4 })
	require.ElementsMatch(t, allStreams, anew())

	// Another process is faster: it is told all the same, because the stream is not the one this bus knew.
	other := connect(t, local)
	require.NoError(t, other.JS().DeleteStream(deadline(t), events.StreamEvent))
	_, err := other.EnsureStreams(deadline(t))
	require.NoError(t, err)
	stacktest.Eventually(t, patience, "the event stream is reported", func() bool { return len(anew()) == 5 })
	require.Equal(t, events.StreamEvent, anew()[4])
}

// A consumer that finds its stream missing makes it; the watcher tells of it although it did not make it itself.
func TestWatchStreamsTellsWhatAConsumerMade(t *testing.T) {
	_, b := start(t)
	c, err := b.SubmitConsumer(deadline(t))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	before, err := b.StreamCreated(deadline(t), events.StreamSubmit)
	require.NoError(t, err)
	require.NoError(t, b.JS().DeleteStream(deadline(t), events.StreamSubmit))
	stacktest.Eventually(t, patience, "the consumer made the stream", func() bool {
		created, err := b.StreamCreated(deadline(t), events.StreamSubmit)
		return err == nil && !created.Equal(before)
	})
	anew := watch(t, b)
	stacktest.Eventually(t, patience, "the watcher tells", func() bool { return len(anew()) == 1 })
	require.Equal(t, []string{events.StreamSubmit}, anew())
}

func TestWatchStreamsEndsWithItsContext(t *testing.T) {
	_, b := start(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.WatchStreams(ctx, nil) }()
	cancel()
	require.NoError(t, <-done)
}
