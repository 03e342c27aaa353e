package submit

import (
	"context"
	"encoding/json"
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
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// patience is how long the tests wait for what should take moments: the machine may be busy.
const patience = time.Minute

// stack is a real NATS and a real database, without a submitter yet.
type stack struct {
	t     *testing.T
	nats  *localstack.NATSProcess
	store *mongostore.Store
	bus   *natsbus.Bus // of the test itself: what a client would use
}

func openStack(t *testing.T) *stack {
	t.Helper()
	return openStackOn(t, stacktest.Mongo(t).URI(), stacktest.Database(t))
}

func openStackOn(t *testing.T, uri, database string) *stack {
	t.Helper()
	k := &stack{t: t, nats: stacktest.NATS(t)}
	var err error
	k.store, err = mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: database})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, k.store.Close(ctx))
	})
	require.NoError(t, k.store.EnsureIndexes(t.Context()))
	k.bus = k.connect()
	t.Cleanup(k.bus.Close)
	_, err = k.bus.EnsureStreams(t.Context())
	require.NoError(t, err)
	return k
}

func (k *stack) connect() *natsbus.Bus {
	k.t.Helper()
	bus, err := natsbus.Connect(natsbus.Options{URL: k.nats.URL(), Name: "test"})
	require.NoError(k.t, err)
	return bus
}

// life is one run of a submitter, with a connection of its own.
type life struct {
	*Submitter
	bus  *natsbus.Bus
	stop func() // in order, and waits
}

type carrier struct {
	*natsbus.Bus
	dead *natsbus.Publisher
}

func (c carrier) Publish(ctx context.Context, msgs []events.Msg) []error {
	return c.dead.Publish(ctx, msgs)
}

// live starts a submitter; store nil is the stack's own.
func (k *stack) live(cfg Config, store Inserter) *life {
	k.t.Helper()
	if store == nil {
		store = k.store
	}
	l := &life{bus: k.connect()}
	source, err := l.bus.SubmitConsumer(k.t.Context())
	require.NoError(k.t, err)
	dead, err := l.bus.Publisher(natsbus.PublisherOptions{})
	require.NoError(k.t, err)
	l.Submitter = New(cfg, store, source, carrier{l.bus, dead}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Run(ctx)
		dead.Close()
		l.bus.Close()
	}()
	l.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	k.t.Cleanup(l.stop)
	return l
}

// queue publishes a body as any NATS client would, and fails unless the stream has it.
func (k *stack) queue(subject, body string, header nats.Header) {
	k.t.Helper()
	_, err := k.bus.JS().PublishMsg(k.t.Context(), &nats.Msg{Subject: subject, Data: []byte(body), Header: header})
	require.NoError(k.t, err)
}

func (k *stack) messages(stream string) uint64 {
	k.t.Helper()
	s, err := k.bus.JS().Stream(k.t.Context(), stream)
	require.NoError(k.t, err)
	info, err := s.Info(k.t.Context())
	require.NoError(k.t, err)
	return info.State.Msgs
}

func (k *stack) untilQueueEmpty() {
	k.t.Helper()
	stacktest.Eventually(k.t, patience, "AX_SUBMIT is empty", func() bool { return k.messages(events.StreamSubmit) == 0 })
}

// tasks reads all that is stored.
func (k *stack) tasks() map[string]*task.Task {
	k.t.Helper()
	all := map[string]*task.Task{}
	for after := ""; ; {
		page, err := k.store.List(k.t.Context(), "", "", 1000, after)
		require.NoError(k.t, err)
		for _, t := range page {
			all[t.ID] = t
		}
		if len(page) < 1000 {
			return all
		}
		after = page[len(page)-1].ID
	}
}

// dead reads all of ax.dead.submit.
func (k *stack) dead() []events.DeadSubmit {
	k.t.Helper()
	n := int(k.messages(events.StreamDead))
	consumer, err := k.bus.JS().OrderedConsumer(k.t.Context(), events.StreamDead, jetstream.OrderedConsumerConfig{})
	require.NoError(k.t, err)
	var all []events.DeadSubmit
	for range n {
		m, err := consumer.Next(jetstream.FetchMaxWait(10 * time.Second))
		require.NoError(k.t, err)
		var d events.DeadSubmit
		require.NoError(k.t, json.Unmarshal(m.Data(), &d))
		all = append(all, d)
	}
	return all
}

// answers collects what is sent to a reply subject.
type answers struct {
	mu  sync.Mutex
	all []events.Answer
}

func (k *stack) answers(subject string) *answers {
	k.t.Helper()
	a := &answers{}
	sub, err := k.bus.NC().Subscribe(subject, func(m *nats.Msg) {
		var got events.Answer
		if json.Unmarshal(m.Data, &got) == nil {
			a.mu.Lock()
			a.all = append(a.all, got)
			a.mu.Unlock()
		}
	})
	require.NoError(k.t, err)
	k.t.Cleanup(func() { _ = sub.Unsubscribe() })
	require.NoError(k.t, k.bus.NC().Flush())
	return a
}

func (a *answers) await(t *testing.T, n int) []events.Answer {
	t.Helper()
	stacktest.Eventually(t, patience, fmt.Sprintf("%d answers", n), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.all) >= n
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]events.Answer(nil), a.all...)
}
