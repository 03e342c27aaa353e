package submit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestAPlainPublishBecomesATask(t *testing.T) {
	k := openStack(t)
	k.live(Config{}, nil)
	k.queue("ax.submit.email", `{"payload":{"to":"a@example.com"}}`, nats.Header{"traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}})
	k.untilQueueEmpty()
	all := k.tasks()
	require.Len(t, all, 1)
	for id := range all {
		got, err := k.store.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, task.Pending, got.State)
		require.JSONEq(t, `{"to":"a@example.com"}`, string(got.Payload))
		require.Equal(t, "nats", got.Source)
		require.Equal(t, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", got.Traceparent)
		require.Len(t, got.ID, 26)
		require.Len(t, got.History, 1)
		require.True(t, got.ScheduledAt.Before(got.CreatedAt), "due at once")
	}
}

// dying is a store that stores the tasks of some insert and then does not answer any more: nothing of it can be acknowledged
// before the submitter is taken down.
type dying struct {
	Inserter
	stored chan struct{} // closed when the last insert has stored its tasks

	mu    sync.Mutex
	lives int // inserts left
}

func newDying(store Inserter, inserts int) *dying {
	return &dying{Inserter: store, lives: inserts, stored: make(chan struct{})}
}

func (d *dying) Insert(ctx context.Context, tasks []*task.Task) ([]task.InsertStatus, error) {
	d.mu.Lock()
	d.lives--
	left := d.lives
	d.mu.Unlock()
	if left >= 0 {
		status, err := d.Inserter.Insert(ctx, tasks)
		if left > 0 {
			return status, err
		}
		close(d.stored)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// publishPlain queues n submissions without ids, the payload of each its number.
func (k *stack) publishPlain(n int) {
	k.t.Helper()
	for i := range n {
		_, err := k.bus.JS().PublishMsgAsync(&nats.Msg{Subject: "ax.submit.email", Data: fmt.Appendf(nil, `{"payload":%d}`, i)})
		require.NoError(k.t, err)
	}
	select {
	case <-k.bus.JS().PublishAsyncComplete():
	case <-time.After(patience):
		k.t.Fatal("publishing takes too long")
	}
}

func (k *stack) requireEachOnce(n int) {
	k.t.Helper()
	all := k.tasks()
	require.Len(k.t, all, n)
	seen := map[string]bool{}
	for id := range all {
		got, err := k.store.Get(k.t.Context(), id)
		require.NoError(k.t, err)
		require.False(k.t, seen[string(got.Payload)], "payload %s twice", got.Payload)
		seen[string(got.Payload)] = true
	}
	require.Zero(k.t, k.messages(events.StreamDead))
}

// Each life ends between an insert and its acknowledgements, while more is on its way to it. What was in hand is given back, so
// nobody has to wait until the server loses patience.
func TestStoppedBetweenInsertAndAcks(t *testing.T) {
	k := openStack(t)
	k.publishPlain(1000)
	for _, inserts := range []int{1, 2, 3, 4, 1} {
		store := newDying(k.store, inserts)
		l := k.live(Config{Batch: 150, Grace: 50 * time.Millisecond}, store)
		<-store.stored
		l.stop()
		require.NotZero(t, k.messages(events.StreamSubmit), "it died before it had acknowledged all")
	}
	k.live(Config{}, nil)
	began := time.Now()
	k.untilQueueEmpty()
	require.Less(t, time.Since(began), 25*time.Second, "something was not given back")
	k.requireEachOnce(1000)
}

// As kill -9: the connection is gone at once, nothing can be given back. The consumer is deleted as well, so that even the
// number of deliveries is forgotten and everything left comes anew.
func TestKilledBetweenInsertAndAcks(t *testing.T) {
	k := openStack(t)
	k.publishPlain(1000)
	for _, inserts := range []int{1, 3} {
		store := newDying(k.store, inserts)
		l := k.live(Config{Batch: 200, Grace: time.Millisecond}, store)
		<-store.stored
		l.bus.NC().Close()
		l.stop()
		require.NoError(t, k.bus.JS().DeleteConsumer(t.Context(), events.StreamSubmit, "submitter"))
	}
	require.EqualValues(t, 1000, k.messages(events.StreamSubmit)+k.acknowledged(1000), "nothing was acknowledged that is not stored")
	k.live(Config{}, nil)
	k.untilQueueEmpty()
	k.requireEachOnce(1000)
}

// acknowledged is how many of n messages are gone from the stream; each of them must be a task by now.
func (k *stack) acknowledged(n uint64) uint64 {
	gone := n - k.messages(events.StreamSubmit)
	require.GreaterOrEqual(k.t, uint64(len(k.tasks())), gone)
	return gone
}

func TestTwoSubmittersShareTheWork(t *testing.T) {
	k := openStack(t)
	k.publishPlain(1000)
	k.live(Config{Batch: 20}, nil)
	k.live(Config{Batch: 20}, nil)
	k.untilQueueEmpty()
	k.requireEachOnce(1000)
}

// badBodies are refused at every door; here they come by the stream, in the middle of good ones.
var badBodies = map[string]struct{ body, code, field string }{
	"unknown field":            {`{"maxAttempt":3}`, events.CodeInvalid, "maxAttempt"},
	"misspelt duration":        {`{"delay":"5 sec"}`, events.CodeInvalid, "delay"},
	"duration without unit":    {`{"timeout":"30"}`, events.CodeInvalid, "timeout"},
	"priority 10":              {`{"priority":10}`, events.CodeInvalid, "priority"},
	"negative maxAttempts":     {`{"maxAttempts":-1}`, events.CodeInvalid, "maxAttempts"},
	"payload over the limit":   {`{"payload":"` + strings.Repeat("x", task.MaxPayload) + `"}`, events.CodeTooLarge, "payload"},
	"illegal id":               {`{"id":"a b"}`, events.CodeInvalid, "id"},
	"reserved id, cron":        {`{"id":"cron:a:b"}`, events.CodeInvalid, "id"},
	"reserved id, ax":          {`{"id":"ax:1"}`, events.CodeInvalid, "id"},
	"scheduledAt without zone": {`{"scheduledAt":"2026-03-01T12:00:00"}`, events.CodeInvalid, "scheduledAt"},
	"invalid JSON":             {`{"payload":}`, events.CodeInvalid, "body"},
	"empty body":               {``, events.CodeInvalid, "body"},
	"unsupported":              {`{"dependsOn":["a"]}`, events.CodeUnsupported, "dependsOn"},
}

func TestBadSubmissionsAmongGoodOnes(t *testing.T) {
	k := openStack(t)
	got := k.answers("answers.bad")
	header := nats.Header{events.HeaderReplyTo: {"answers.bad"}}
	for i := range 50 {
		k.queue("ax.submit.email", fmt.Sprintf(`{"id":"good-%d"}`, i), nil)
	}
	for _, c := range badBodies {
		k.queue("ax.submit.email", c.body, header)
	}
	k.queue("ax.submit.a.b", `{}`, header)
	k.queue("ax.submit.Email", `{}`, header)
	k.queue("ax.workflow.submit", `{"tasks":[]}`, header)
	for i := range 50 {
		k.queue("ax.submit.email", fmt.Sprintf(`{"id":"more-%d"}`, i), nil)
	}
	k.live(Config{}, nil)
	k.untilQueueEmpty()

	require.Len(t, k.tasks(), 100)
	dead := k.dead()
	require.Len(t, dead, len(badBodies)+3)
	byBody := map[string]events.DeadSubmit{}
	for _, d := range dead {
		byBody[d.Subject+string(d.Body)] = d
	}
	for name, c := range badBodies {
		d, ok := byBody["ax.submit.email"+c.body]
		require.True(t, ok, "%s: kept with its body", name)
		require.Equal(t, c.code, d.Error.Code, name)
		require.Equal(t, c.field, d.Error.Field, name)
		require.NotZero(t, d.Sequence)
	}
	require.Equal(t, "type", byBody["ax.submit.a.b{}"].Error.Field)
	require.Equal(t, "type", byBody["ax.submit.Email{}"].Error.Field)
	require.Equal(t, events.CodeUnsupported, byBody[`ax.workflow.submit{"tasks":[]}`].Error.Code)
	for _, a := range got.await(t, len(dead)) {
		require.False(t, a.Accepted)
		require.NotEmpty(t, a.Error.Message)
	}
}

func TestSameIDAgain(t *testing.T) {
	k := openStack(t)
	k.live(Config{}, nil)
	got := k.answers("answers.ids")
	for i, body := range []string{`{"id":"order-7","payload":1}`, `{"payload":1,"id":"order-7"}`, `{"id":"order-7","payload":2}`} {
		k.queue("ax.submit.email", body, nats.Header{events.HeaderReplyTo: {"answers.ids"}})
		got.await(t, i+1)
	}
	all := got.await(t, 3)
	require.Equal(t, events.Answer{ID: "order-7", Accepted: true}, all[0])
	require.Equal(t, events.Answer{ID: "order-7", Accepted: true, Duplicate: true}, all[1])
	require.Equal(t, "order-7", all[2].ID)
	require.Equal(t, events.CodeIDConflict, all[2].Error.Code)
	require.Equal(t, "order-7", all[2].Error.Value)
	k.untilQueueEmpty()
	stored, err := k.store.Get(t.Context(), "order-7")
	require.NoError(t, err)
	require.Equal(t, "1", string(stored.Payload))
	require.Len(t, k.dead(), 1)
}

func TestDelaysCountByTheDatabasesClock(t *testing.T) {
	k := openStack(t)
	k.live(Config{}, nil)
	k.queue("ax.submit.email", `{"id":"later","delay":"1h"}`, nil)
	k.untilQueueEmpty()
	got, err := k.store.Get(t.Context(), "later")
	require.NoError(t, err)
	require.InDelta(t, time.Hour.Seconds(), got.ScheduledAt.Sub(got.CreatedAt).Seconds(), 30)
}

// While the database is gone nothing is lost, nothing is acknowledged and the process says why it is not ready.
func TestDatabaseKilledAndBack(t *testing.T) {
	mongo := stacktest.StartMongo(t, localstack.MongoOptions{Dir: t.TempDir()})
	k := openStackOn(t, mongo.URI(), "outage")
	l := k.live(Config{Batch: 50, Insert: 2 * time.Second}, nil)
	k.publishPlain(100)
	k.untilQueueEmpty()

	require.NoError(t, mongo.Kill())
	k.publishPlain(200)
	stacktest.Eventually(t, patience, "not ready", func() bool { return l.Check(t.Context()) != nil })
	require.EqualValues(t, 200, k.messages(events.StreamSubmit))
	_, errs := l.storeAll(t.Context(), []*task.Task{{ID: "by-request"}})
	require.Error(t, errs[0], "requests are told at once")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, mongo.Restart(ctx))
	k.untilQueueEmpty()
	stacktest.Eventually(t, patience, "ready again", func() bool { return l.Check(t.Context()) == nil })
	require.Len(t, k.tasks(), 300)
}

func TestNATSRestarts(t *testing.T) {
	k := openStack(t)
	k.live(Config{Batch: 20}, nil)
	k.publishPlain(200)
	k.untilQueueEmpty() // an acknowledgement that is lost in the restart would cost the server's patience
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, k.nats.Restart(ctx))
	stacktest.Eventually(t, patience, "connected again", func() bool { return k.bus.NC().IsConnected() })
	k.queue("ax.submit.email", `{"payload":"after"}`, nil)
	k.untilQueueEmpty()
	k.requireEachOnce(201)
}

// What is refused by the server of AX_DEAD waits, and others pass.
func TestDeadLetterStreamMissing(t *testing.T) {
	k := openStack(t)
	k.live(Config{Aside: time.Second}, nil)
	require.NoError(t, k.bus.JS().DeleteStream(t.Context(), events.StreamDead))
	k.queue("ax.submit.email", `nonsense`, nil)
	k.queue("ax.submit.email", `{"id":"good"}`, nil)
	stacktest.Eventually(t, patience, "the good one is stored", func() bool {
		_, err := k.store.Get(t.Context(), "good")
		return err == nil
	})
	stacktest.Eventually(t, patience, "the bad one alone is still queued", func() bool { return k.messages(events.StreamSubmit) == 1 })
	_, err := k.bus.EnsureStreams(t.Context())
	require.NoError(t, err)
	k.untilQueueEmpty()
	dead := k.dead()
	require.Len(t, dead, 1)
	require.Equal(t, "nonsense", string(dead[0].Body))
}

func TestPayloadsComeBackAsTheyWentIn(t *testing.T) {
	k := openStack(t)
	k.live(Config{}, nil)
	for i, payload := range []string{`null`, `1.0`, `1e400`, `9007199254740993`, `"\ud800"`, `{"$set":{"a.b":1}}`, `{"a":1,"a":2}`, `""`, `[]`, `"\u0000"`,
		strings.Repeat("[", 500) + strings.Repeat("]", 500), `{"émoji":"😀\u202e"}`} {
		id := fmt.Sprintf("p%d", i)
		k.queue("ax.submit.email", fmt.Sprintf(`{"id":%q,"payload":%s}`, id, payload), nil)
		k.untilQueueEmpty()
		got, err := k.store.Get(t.Context(), id)
		require.NoError(t, err, payload)
		var want, have any
		require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(payload, "1e400", `"1e400"`)), &want))
		require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(string(got.Payload), "1e400", `"1e400"`)), &have))
		require.Equal(t, want, have)
	}
}
