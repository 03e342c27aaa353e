package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.ServiceMain(m, main) }

const patience = time.Minute

// rig is a database and a NATS for the service to run on, as a process of its own.
type rig struct {
	t   *testing.T
	env []string
	db  *mongostore.Store
	bus *natsbus.Bus
}

func newRig(t *testing.T, uri, database string) *rig {
	t.Helper()
	server := stacktest.NATS(t)
	r := &rig{t: t, env: []string{"AX_MONGO_URI=" + uri, "AX_MONGO_DB=" + database, "AX_NATS_URL=" + server.URL(), "AX_SUBMITTER_BATCH=50"}}
	var err error
	r.db, err = mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: database})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.db.Close(context.Background())) })
	r.bus, err = natsbus.Connect(natsbus.Options{URL: server.URL()})
	require.NoError(t, err)
	t.Cleanup(r.bus.Close)
	_, err = r.bus.EnsureStreams(t.Context())
	require.NoError(t, err)
	return r
}

func (r *rig) start() *localstack.Service {
	r.t.Helper()
	return stacktest.Service(r.t, service, r.env...)
}

func (r *rig) queued() uint64 {
	r.t.Helper()
	stream, err := r.bus.JS().Stream(r.t.Context(), events.StreamSubmit)
	require.NoError(r.t, err)
	return stream.CachedInfo().State.Msgs
}

func (r *rig) untilQueueEmpty() {
	r.t.Helper()
	stacktest.Eventually(r.t, patience, "AX_SUBMIT is empty", func() bool { return r.queued() == 0 })
}

func TestServiceStoresAnswersAndStops(t *testing.T) {
	r := newRig(t, stacktest.Mongo(t).URI(), stacktest.Database(t))
	s := r.start()
	// What any NATS client does.
	require.NoError(t, r.bus.NC().Publish("ax.submit.email", []byte(`{"id":"plain","payload":{"to":"a@example.com"}}`)))
	require.NoError(t, r.bus.NC().Publish("ax.submit.email", []byte(`{"priority":10}`)))
	stacktest.Eventually(t, patience, "both are dealt with", func() bool {
		return stacktest.Metric(t, s, "ax_submitter_accepted_total") == 1 && stacktest.Metric(t, s, "ax_submitter_refused_total", `code="invalid"`) == 1
	})
	r.untilQueueEmpty()

	var got events.Task
	require.NoError(t, r.bus.Request(t.Context(), events.APIGet, events.IDRequest{ID: "plain"}, &got))
	require.Equal(t, "pending", got.State)
	var answer events.Answer
	require.NoError(t, r.bus.Request(t.Context(), events.APISubmit, events.SubmitRequest{Type: "email", Submit: events.Submit{ID: "asked"}}, &answer))
	require.Equal(t, events.Answer{ID: "asked", Accepted: true}, answer)
	require.NotZero(t, stacktest.Metric(t, s, "ax_submitter_insert_seconds_count"))

	require.NoError(t, s.Stop(20*time.Second), "it stops in order")
	err := r.bus.Request(t.Context(), events.APIGet, events.IDRequest{ID: "plain"}, &got)
	require.ErrorContains(t, err, "nobody answers")
}

// Killed again and again in the middle of 1,000 publishes without ids: each becomes one task.
func TestKilledWhileItStores(t *testing.T) {
	r := newRig(t, stacktest.Mongo(t).URI(), stacktest.Database(t))
	s := r.start()
	publish := func(from, to int) {
		for i := from; i < to; i++ {
			_, err := r.bus.JS().PublishMsgAsync(&nats.Msg{Subject: "ax.submit.email", Data: fmt.Appendf(nil, `{"payload":%d}`, i)})
			require.NoError(t, err)
		}
	}
	const n, part = 1000, 200
	for i := range n / part {
		before := stacktest.Metric(t, s, "ax_submitter_accepted_total")
		publish(i*part, (i+1)*part)
		stacktest.Eventually(t, patience, "it has begun", func() bool { return stacktest.Metric(t, s, "ax_submitter_accepted_total") > before })
		require.NoError(t, s.Kill())
		// Deleting the consumer spares the half minute until NATS delivers again, and forgets that it ever delivered.
		require.NoError(t, r.bus.JS().DeleteConsumer(t.Context(), events.StreamSubmit, "submitter"))
		s = r.start()
	}
	<-r.bus.JS().PublishAsyncComplete()
	r.untilQueueEmpty()

	seen := map[string]bool{}
	for after := ""; ; {
		page, err := r.db.List(t.Context(), "", "", 500, after)
		require.NoError(t, err)
		for _, listed := range page {
			after = listed.ID
			full, err := r.db.Get(t.Context(), listed.ID)
			require.NoError(t, err)
			require.False(t, seen[string(full.Payload)], "payload %s twice", full.Payload)
			seen[string(full.Payload)] = true
		}
		if len(page) == 0 {
			break
		}
	}
	require.Len(t, seen, n)
}

func TestNotReadyWithoutTheDatabase(t *testing.T) {
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{Dir: t.TempDir()})
	r := newRig(t, mongo.URI(), "ax")
	s := r.start()
	require.NoError(t, mongo.Kill())
	require.NoError(t, r.bus.NC().Publish("ax.submit.email", []byte(`{"id":"waits"}`)))
	var waits struct{ WaitingFor []struct{ Name string } }
	stacktest.Eventually(t, patience, "it says that it is not ready", func() bool {
		answer, err := http.Get(s.URL() + "/readyz")
		require.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(body, &waits))
		return answer.StatusCode == http.StatusServiceUnavailable
	})
	require.NotEmpty(t, waits.WaitingFor)
	require.EqualValues(t, 1, r.queued())

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, mongo.Restart(ctx))
	r.untilQueueEmpty()
	stacktest.Eventually(t, patience, "it is ready again", func() bool { return stacktest.Ready(t, s) })
	_, err := r.db.Get(t.Context(), "waits")
	require.NoError(t, err)
}
