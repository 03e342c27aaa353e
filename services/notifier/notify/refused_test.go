package notify

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/pkg/events"
)

func TestRefusedSubmissionsAreCountedOnceAndSaid(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t)
	n := New(Config{}, w, w, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	r := n.Refusals()
	body, err := json.Marshal(events.DeadSubmit{
		Subject: "ax.submit.email", Sequence: 7, Body: []byte(`{"payload":"secret"}`),
		Error: events.Error{Code: events.CodeInvalid, Field: "priority", Message: "field priority: 10 is not allowed"},
	})
	require.NoError(t, err)
	for range 3 { // delivered again
		require.NoError(t, r.Handle(message.NewMessage("AX_DEAD:1", body)))
	}
	require.NoError(t, r.Handle(message.NewMessage("AX_DEAD:2", body)))
	require.NoError(t, r.Handle(message.NewMessage("AX_DEAD:3", []byte("no JSON"))))
	require.NoError(t, r.Handle(message.NewMessage("AX_DEAD:4", []byte(`{"error":{"code":"made up"}}`))))

	require.Equal(t, 2.0, testutil.ToFloat64(n.metrics.refused.WithLabelValues("invalid")))
	require.Equal(t, 1.0, testutil.ToFloat64(n.metrics.refused.WithLabelValues("unreadable")))
	require.Equal(t, 1.0, testutil.ToFloat64(n.metrics.refused.WithLabelValues("other")))
	require.Contains(t, log.String(), "subject=ax.submit.email")
	require.Contains(t, log.String(), "field=priority")
	require.NotContains(t, log.String(), "secret")
}
