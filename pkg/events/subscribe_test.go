package events_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

const patience = 30 * time.Second

// feed is a stream of events under test: it publishes, and collects what a subscription hands over.
type feed struct {
	t    *testing.T
	nats *localstack.NATSProcess
	nc   *nats.Conn
	js   jetstream.JetStream

	mu   sync.Mutex
	got  map[string][]int64 // by task, in the order handled
	fail func(events.Event) error
}

func newFeed(t *testing.T) *feed {
	f := &feed{t: t, nats: stacktest.NATS(t), got: map[string][]int64{}}
	nc, err := nats.Connect(f.nats.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	f.nc = nc
	f.js, err = jetstream.New(nc)
	require.NoError(t, err)
	f.createStream()
	return f
}

func (f *feed) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *feed) createStream() {
	_, err := f.js.CreateStream(f.context(), jetstream.StreamConfig{Name: events.StreamEvent, Subjects: []string{events.SubjectEventAll}})
	require.NoError(f.t, err)
}

func (f *feed) publish(id string, seq int64) { f.publishAs("email", "running", id, seq) }

func (f *feed) publishAs(taskType, state, id string, seq int64) {
	data, err := events.EncodeEvent(events.Event{ID: id, Type: taskType, Seq: seq, State: state, Reason: "claimed"})
	require.NoError(f.t, err)
	stacktest.Eventually(f.t, patience, "published, perhaps twice, through a restart of the server", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // a server that dies answers nothing
		defer cancel()
		_, err = f.js.Publish(ctx, events.SubjectEvent(taskType, state), data)
		return err == nil
	})
}

func (f *feed) handle(_ context.Context, e events.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		if err := f.fail(e); err != nil {
			return err
		}
	}
	f.got[e.ID] = append(f.got[e.ID], e.Seq)
	return nil
}

func (f *feed) seqs(id string) []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]int64(nil), f.got[id]...)
}

func (f *feed) subscribe(opts events.SubscribeOptions) *events.Subscription {
	opts.RetryFirst, opts.RetryMost = 5*time.Millisecond, 20*time.Millisecond
	s, err := events.Subscribe(context.Background(), f.nc, opts, f.handle)
	require.NoError(f.t, err)
	f.t.Cleanup(s.Stop)
	return s
}

func (f *feed) await(id string, seqs ...int64) {
	f.t.Helper()
	stacktest.Eventually(f.t, patience, fmt.Sprintf("%s is at %v", id, seqs), func() bool { return len(f.seqs(id)) >= len(seqs) })
	require.Equal(f.t, seqs, f.seqs(id))
}

func (f *feed) consumers() []string {
	stream, err := f.js.Stream(f.context(), events.StreamEvent)
	require.NoError(f.t, err)
	var names []string
	for name := range stream.ConsumerNames(f.context()).Name() {
		names = append(names, name)
	}
	return names
}

// deleteConsumer removes the one consumer there is, as an operator may.
func (f *feed) deleteConsumer() {
	f.t.Helper()
	stacktest.Eventually(f.t, patience, "there is one consumer", func() bool { return len(f.consumers()) == 1 })
	require.NoError(f.t, f.js.DeleteConsumer(f.context(), events.StreamEvent, f.consumers()[0]))
}

func TestSubscribeDropsWhatComesTwice(t *testing.T) {
	f := newFeed(t)
	f.subscribe(events.SubscribeOptions{})
	for _, seq := range []int64{1, 2, 2, 1, 3, 2, 4} {
		f.publish("a", seq)
	}
	f.publish("b", 1)
	f.await("a", 1, 2, 3, 4)
	f.await("b", 1)
}

func TestSubscribeBeginsWhereAsked(t *testing.T) {
	f := newFeed(t)
	f.publish("old", 1)
	info, err := f.js.Stream(f.context(), events.StreamEvent)
	require.NoError(t, err)
	after := info.CachedInfo().State.LastTime.Add(time.Nanosecond)
	f.publish("middle", 1)

	f.subscribe(events.SubscribeOptions{})
	f.publish("new", 1)
	f.await("new", 1)
	require.Empty(t, f.seqs("old"))
	require.Empty(t, f.seqs("middle"))

	f.subscribe(events.SubscribeOptions{Since: after})
	f.await("middle", 1)
	require.Empty(t, f.seqs("old"))

	f.subscribe(events.SubscribeOptions{Start: events.StartAll})
	f.await("old", 1)
}

func TestSubscribeFilters(t *testing.T) {
	f := newFeed(t)
	f.subscribe(events.SubscribeOptions{Types: []string{"email", "sms", "email"}, States: []string{"success"}})
	f.publishAs("email", "running", "no-1", 1)
	f.publishAs("video", "success", "no-2", 1)
	f.publishAs("sms", "success", "yes-1", 1)
	f.publishAs("email", "success", "yes-2", 1)
	f.await("yes-1", 1)
	f.await("yes-2", 1)
	require.Empty(t, f.seqs("no-1"))
	require.Empty(t, f.seqs("no-2"))

	for _, bad := range []events.SubscribeOptions{
		{Types: []string{"a.b"}}, {Types: []string{">"}}, {States: []string{""}}, {States: []string{"a b"}}, {Durable: "x.y"},
	} {
		_, err := events.Subscribe(f.context(), f.nc, bad, f.handle)
		require.Error(t, err, "%+v", bad)
	}
}

func TestSubscribeFailureHoldsItsTaskOnly(t *testing.T) {
	f := newFeed(t)
	var open bool
	tries := 0
	f.fail = func(e events.Event) error {
		if e.ID != "a" || e.Seq != 2 || open {
			return nil
		}
		if tries++; tries%2 == 0 {
			panic("handler")
		}
		return errors.New("not yet")
	}
	f.subscribe(events.SubscribeOptions{Concurrency: 2})
	for seq := range int64(4) {
		f.publish("a", seq+1)
		f.publish("b", seq+1)
	}
	f.await("b", 1, 2, 3, 4)
	stacktest.Eventually(t, patience, "the failing event is tried again and again", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return tries >= 4
	})
	require.Equal(t, []int64{1}, f.seqs("a"), "nothing passes the event that failed")
	f.mu.Lock()
	open = true
	f.mu.Unlock()
	f.await("a", 1, 2, 3, 4)
}

func TestSubscribeDurableGoesOnWhereItStopped(t *testing.T) {
	f := newFeed(t)
	opts := events.SubscribeOptions{Durable: "audit"}
	first := f.subscribe(opts)
	f.publish("a", 1)
	f.await("a", 1)
	// What fails at the stop is not lost, and the next subscription gets it first.
	failed := make(chan struct{}, 100)
	f.fail = func(e events.Event) error { failed <- struct{}{}; return errors.New("no") }
	f.publish("a", 2)
	<-failed
	first.Stop()
	<-first.Done()
	f.mu.Lock()
	f.fail = nil
	f.mu.Unlock()
	f.publish("a", 3)

	opts.States = []string{"running", "success"} // other filters are taken over
	f.subscribe(opts)
	f.await("a", 1, 2, 3)
	f.publishAs("email", "success", "a", 4)
	f.await("a", 1, 2, 3, 4)
}

func TestSubscribeStopEndsTheHandlersContext(t *testing.T) {
	f := newFeed(t)
	entered := make(chan struct{})
	s, err := events.Subscribe(context.Background(), f.nc, events.SubscribeOptions{}, func(ctx context.Context, _ events.Event) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	})
	require.NoError(t, err)
	f.publish("a", 1)
	<-entered
	s.Stop()
	require.Empty(t, f.consumers(), "the consumer without a name is gone")
}

func TestSubscribeSurvivesDeletionOfItsConsumer(t *testing.T) {
	f := newFeed(t)
	f.subscribe(events.SubscribeOptions{Durable: "audit"})
	f.publish("a", 1)
	f.await("a", 1)
	for round := range int64(3) {
		f.deleteConsumer()
		f.publish("a", round+2) // perhaps before the consumer is there again
		stacktest.Eventually(t, patience, "the event arrives", func() bool { return len(f.seqs("a")) == int(round)+2 })
	}
	f.await("a", 1, 2, 3, 4)
}

// A durable's position is kept although its consumer was deleted before it delivered anything to the new subscription.
func TestSubscribeKeepsThePositionOfADeletedConsumer(t *testing.T) {
	f := newFeed(t)
	first := f.subscribe(events.SubscribeOptions{Durable: "audit"})
	f.publish("a", 1)
	f.await("a", 1)
	first.Stop()
	second := f.subscribe(events.SubscribeOptions{Durable: "audit"})
	f.deleteConsumer()
	f.publish("a", 2)
	f.await("a", 1, 2)
	second.Stop()
}

func TestSubscribeSurvivesLossOfTheStore(t *testing.T) {
	f := newFeed(t)
	f.subscribe(events.SubscribeOptions{Durable: "audit"})
	for seq := range int64(5) {
		f.publish("a", seq+1)
	}
	f.await("a", 1, 2, 3, 4, 5)
	require.NoError(t, f.nats.Wipe(f.context()))
	stacktest.Eventually(t, patience, "the client is back", f.nc.IsConnected)
	f.createStream()
	// The notifier publishes the last hour again, so sequences of the new stream stand for other events.
	for seq := range int64(7) {
		f.publish("a", seq+1)
	}
	f.publish("b", 1)
	f.await("a", 1, 2, 3, 4, 5, 6, 7)
	f.await("b", 1)
}

func TestSubscribeNeedsTheStream(t *testing.T) {
	f := newFeed(t)
	require.NoError(t, f.js.DeleteStream(f.context(), events.StreamEvent))
	_, err := events.Subscribe(f.context(), f.nc, events.SubscribeOptions{}, f.handle)
	require.ErrorContains(t, err, "start the services of ax first")
}

func TestSubscribeLeavesOutWhatIsNoEvent(t *testing.T) {
	f := newFeed(t)
	f.subscribe(events.SubscribeOptions{MaxPending: 2}) // two such messages left unacknowledged would stop it
	for range 5 {
		_, err := f.js.Publish(f.context(), events.SubjectEvent("email", "running"), []byte("{"))
		require.NoError(t, err)
	}
	f.publish("a", 1)
	f.await("a", 1)
}

func TestSubscribeEndsWithTheConnection(t *testing.T) {
	f := newFeed(t)
	nc, err := nats.Connect(f.nats.URL())
	require.NoError(t, err)
	s, err := events.Subscribe(context.Background(), nc, events.SubscribeOptions{}, f.handle)
	require.NoError(t, err)
	nc.Close()
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("still running without a connection")
	}
}

// 5,000 events of 50 tasks, some published twice, with a restart of NATS in the middle, a slow handler and random failures:
// each task's arrive in order, without a gap and without a repeat.
func TestSubscribeKeepsOrderThroughARestart(t *testing.T) {
	const tasks, each = 50, 100
	f := newFeed(t)
	calls := 0
	f.fail = func(events.Event) error {
		if calls++; calls%97 == 0 {
			return errors.New("now and then")
		}
		return nil
	}
	f.subscribe(events.SubscribeOptions{Durable: "audit", Concurrency: 4, MaxPending: 200})
	var wg sync.WaitGroup
	half := make(chan struct{}, tasks)
	for task := range tasks {
		wg.Go(func() {
			for seq := range int64(each) {
				if seq == each/2 {
					half <- struct{}{}
				}
				f.publish(fmt.Sprint("task-", task), seq+1)
				if seq%10 == 0 {
					f.publish(fmt.Sprint("task-", task), seq+1)
				}
			}
		})
	}
	for range tasks {
		<-half
	}
	require.NoError(t, f.nats.Restart(f.context()))
	wg.Wait()
	want := make([]int64, each)
	for i := range want {
		want[i] = int64(i) + 1
	}
	for task := range tasks {
		f.await(fmt.Sprint("task-", task), want...)
	}
}

// A process dies with an event unsettled and newer ones of the same task settled or on their way: its successor gets the
// old one first, and does not wait for the server to deliver it again.
func TestSubscribeTakesOverFromADeadProcess(t *testing.T) {
	f := newFeed(t)
	nc, err := nats.Connect(f.nats.URL())
	require.NoError(t, err)
	entered := make(chan struct{}, 1)
	dead, err := events.Subscribe(context.Background(), nc, events.SubscribeOptions{Durable: "audit"}, func(ctx context.Context, e events.Event) error {
		if e.ID == "b" {
			return nil
		}
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	require.NoError(t, err)
	for seq := range int64(3) {
		f.publish("a", seq+1)
		f.publish("b", seq+1)
	}
	<-entered
	nc.Close()
	<-dead.Done()

	begun := time.Now()
	f.subscribe(events.SubscribeOptions{Durable: "audit"})
	f.await("a", 1, 2, 3)
	require.Less(t, time.Since(begun), 5*time.Second)
	require.Len(t, f.consumers(), 1)
}
