package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// How long ago a worker was seen is told by the database's clock. This host's, in the tests years ahead of it, is not asked.
func TestStatusDoesNotAskThisHostsClock(t *testing.T) {
	url := stacktest.NATS(t).URL()
	bus, err := natsbus.Connect(natsbus.Options{URL: url, Name: "test"})
	require.NoError(t, err)
	defer bus.Close()
	stats := events.StatsReply{Now: "2001-02-03T04:05:06.789Z", Workers: []events.Worker{
		{ID: "w1", Types: []string{"email"}, Slots: 4, Channel: "stable", SeenAt: "2001-02-03T04:05:03.789Z"},
		{ID: "w2", Types: []string{"email"}, Slots: 4, Channel: "stable", SeenAt: "2001-02-03T04:05:06.790Z"}, // Now is an estimate
	}}
	service, err := bus.Serve(natsbus.ServiceOptions{Name: "test"}, natsbus.Endpoint{Subject: events.APIStats,
		Handle: func(context.Context, events.Header, []byte) (any, error) { return stats, nil }})
	require.NoError(t, err)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, service.Stop(ctx))
	}()
	require.NoError(t, bus.NC().Flush())
	var out, errs bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), []string{"status", "--nats", url}, strings.NewReader(""), &out, &errs), errs.String())
	require.Contains(t, out.String(), " 3s ago ")
	require.Contains(t, out.String(), " 0s ago ")
}
