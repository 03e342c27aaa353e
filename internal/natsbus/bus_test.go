package natsbus_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

const patience = 30 * time.Second

// deadline is a context for what a test waits for.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// connect makes a bus that is closed at the end of the test, before its server stops.
func connect(t testing.TB, server *localstack.NATSProcess, with ...func(*natsbus.Options)) *natsbus.Bus {
	opts := natsbus.Options{URL: server.URL(), Name: "test", Log: testLog(t)}
	for _, change := range with {
		change(&opts)
	}
	b, err := natsbus.Connect(opts)
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return b
}

// start makes a server and a bus with its streams.
func start(t testing.TB, with ...func(*natsbus.Options)) (*localstack.NATSProcess, *natsbus.Bus) {
	server := stacktest.NATS(t)
	b := connect(t, server, with...)
	_, err := b.EnsureStreams(deadline(t))
	require.NoError(t, err)
	return server, b
}

// watch runs WatchStreams until the end of the test and collects the streams created anew.
func watch(t testing.TB, b *natsbus.Bus) func() []string {
	var mu sync.Mutex
	var anew []string
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = b.WatchStreams(ctx, func(stream string) {
			mu.Lock()
			defer mu.Unlock()
			anew = append(anew, stream)
		})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), anew...)
	}
}

// testLog writes to the test's own log, and drops what comes after its end.
func testLog(t testing.TB) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return slog.New(slog.NewTextHandler(w, nil))
}

type testWriter struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *testWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", line)
	}
	return len(line), nil
}

func publisher(t testing.TB, b *natsbus.Bus, opts natsbus.PublisherOptions) *natsbus.Publisher {
	p, err := b.Publisher(opts)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// publish stores messages and fails the test if one of them is not stored.
func publish(t testing.TB, b *natsbus.Bus, subject string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		_, err := b.JS().Publish(deadline(t), subject, []byte(body))
		require.NoError(t, err)
	}
}

func streamState(t testing.TB, b *natsbus.Bus, name string) jetstream.StreamState {
	t.Helper()
	stream, err := b.JS().Stream(deadline(t), name)
	require.NoError(t, err)
	return stream.CachedInfo().State
}

// bodies lists what a stream holds, in order.
func bodies(t testing.TB, b *natsbus.Bus, name string) []string {
	t.Helper()
	stream, err := b.JS().Stream(deadline(t), name)
	require.NoError(t, err)
	var got []string
	state := stream.CachedInfo().State
	for sequence := state.FirstSeq; sequence <= state.LastSeq; sequence++ {
		m, err := stream.GetMsg(deadline(t), sequence)
		if err == nil {
			got = append(got, string(m.Data))
		}
	}
	return got
}

func numbers(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(i)
	}
	return list
}

func TestConnectNamesTheServerWithoutItsPassword(t *testing.T) {
	_, err := natsbus.Connect(natsbus.Options{URL: "nats://user:secret@127.0.0.1:1", ConnectTimeout: time.Second})
	require.ErrorContains(t, err, "nats://127.0.0.1:1")
	require.ErrorContains(t, err, "AX_NATS_URL")
	require.NotContains(t, err.Error(), "secret")
}

func TestAddressesThatCanNeverWork(t *testing.T) {
	for _, good := range []string{"nats://h:4222", "h:4222", "h", "nats://u:hush@a:1, tls://b:2", "ws://h", "nats://[::1]:4222"} {
		require.NoError(t, natsbus.CheckURL(good), good)
	}
	for _, bad := range []string{"", "nats://", "nats://h:port", "http://h", "mongodb://h", "nats://a,,nats://b", "nats://u:hush", "nats://u:hush%zz@h"} {
		err := natsbus.CheckURL(bad)
		require.ErrorContains(t, err, "is not of the form nats://host:port", bad)
		require.NotContains(t, err.Error(), "hush", "a password is not shown")
	}
	require.EqualError(t, natsbus.CheckURL("nats://a,nats://"), "address 2 of 2 is not of the form nats://host:port")
}

func TestReadyFollowsTheServer(t *testing.T) {
	server, b := start(t)
	require.NoError(t, b.Ready(context.Background()))
	require.NoError(t, server.Down())
	stacktest.Eventually(t, patience, "not ready", func() bool { return b.Ready(context.Background()) != nil })
	require.ErrorContains(t, b.Ready(context.Background()), "out of reach")
	require.NoError(t, server.Restart(deadline(t)))
	stacktest.Eventually(t, patience, "ready again", func() bool { return b.Ready(context.Background()) == nil })
}

func TestTwoBusesShareARegistry(t *testing.T) {
	server := stacktest.NATS(t)
	reg := prometheus.NewRegistry()
	for range 2 {
		b, err := natsbus.Connect(natsbus.Options{URL: server.URL(), Registry: reg})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		_, err = b.EnsureStreams(deadline(t))
		require.NoError(t, err)
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	for _, f := range families {
		require.Contains(t, f.GetName(), "ax_bus_")
	}
}

func TestCancelReachesSubscribers(t *testing.T) {
	server, b := start(t)
	got := make(chan events.Cancel, 10)
	stop, err := b.SubscribeCancel(func(c events.Cancel) { got <- c })
	require.NoError(t, err)
	require.NoError(t, b.Ready(deadline(t))) // the subscription is known to the server

	sender := connect(t, server)
	require.NoError(t, sender.NC().Publish(events.SubjectCancel, []byte("{")))
	want := events.Cancel{ID: "a", ExecutionID: "CLAIM:a"}
	require.NoError(t, sender.PublishCancel(want))
	require.Equal(t, want, <-got)
	stop()
	require.NoError(t, b.Ready(deadline(t)))
	require.NoError(t, sender.PublishCancel(want))
	require.NoError(t, sender.Ready(deadline(t)))
	require.NoError(t, b.Ready(deadline(t)))
	require.Empty(t, got)
}

func TestAnswerGoesToPlainSubjectsOnly(t *testing.T) {
	_, b := start(t)
	inbox := nats.NewInbox()
	sub, err := b.NC().SubscribeSync(inbox)
	require.NoError(t, err)
	require.NoError(t, b.Answer(inbox, events.Answer{ID: "a", Accepted: true}))
	m, err := sub.NextMsgWithContext(deadline(t))
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"a","accepted":true}`, string(m.Data))

	for _, bad := range []string{"", "ax", "ax.submit.email", "$JS.API.STREAM.DELETE.AX_SUBMIT", "a.*", "a.>", "a b", "a..b", ".a", "a.", "a\r\nPUB x 0"} {
		require.Error(t, b.Answer(bad, events.Answer{}), "%q", bad)
	}
}
