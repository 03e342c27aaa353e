package localstack_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

func jetStream(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestNATSRestartKeepsPortAndStreamsAndWipeDeletesThem(t *testing.T) {
	ctx := deadline(t)
	n := stacktest.NATS(t)
	url := n.URL()
	js := jetStream(t, url)
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish(ctx, "s", []byte("x"))
	require.NoError(t, err)

	require.NoError(t, n.Restart(ctx))
	require.Equal(t, url, n.URL())
	s, err := jetStream(t, url).Stream(ctx, "S")
	require.NoError(t, err)
	info, err := s.Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.State.Msgs)

	require.NoError(t, n.Wipe(ctx))
	require.Equal(t, url, n.URL())
	_, err = jetStream(t, url).Stream(ctx, "S")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}

func TestNATSDownIsOutOfReachUntilRestart(t *testing.T) {
	n := stacktest.NATS(t)
	require.NoError(t, n.Down())
	_, err := nats.Connect(n.URL())
	require.ErrorIs(t, err, nats.ErrNoServers)
	require.NoError(t, n.Restart(t.Context()))
	jetStream(t, n.URL())
}

func TestNATSRefusesWhatDoesNotFitItsStore(t *testing.T) {
	n := stacktest.NATS(t, func(o *localstack.NATSOptions) { o.MaxStore = 1 << 20 })
	_, err := jetStream(t, n.URL()).CreateStream(deadline(t), jetstream.StreamConfig{Name: "S", MaxBytes: 2 << 20})
	require.ErrorContains(t, err, "insufficient storage")
}

func TestNATSThatCannotStartSaysWhy(t *testing.T) {
	n := stacktest.NATS(t)
	var port int
	_, err := fmt.Sscanf(n.URL(), "nats://127.0.0.1:%d", &port)
	require.NoError(t, err)
	_, err = localstack.StartNATSProcess(t.Context(), localstack.NATSProcessOptions{Path: os.Args[0], Env: []string{"TEST_RUNS_NATS=1"},
		NATSOptions: localstack.NATSOptions{Dir: t.TempDir(), Port: port}})
	require.ErrorContains(t, err, "natsd: start NATS")
	require.ErrorContains(t, err, "address already in use")
}
