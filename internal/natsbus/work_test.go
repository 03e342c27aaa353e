package natsbus_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

var high = events.SubjectWork("email", "stable", "high")

func lane(t testing.TB, b *natsbus.Bus, name string) *natsbus.Lane {
	l := b.Lane("email", "stable", name)
	t.Cleanup(l.Close)
	return l
}

// fetch asks once and acknowledges what comes.
func fetch(t testing.TB, l *natsbus.Lane, n int) []string {
	t.Helper()
	got, err := l.FetchNoWait(deadline(t), n)
	require.NoError(t, err)
	for _, m := range got {
		require.NoError(t, m.Ack())
	}
	return dataOf(got)
}

// arrival waits for the signal that Listen asks for.
func arrival(t testing.TB, l *natsbus.Lane) natsbus.Message {
	t.Helper()
	select {
	case m := <-l.Arrivals():
		return m
	case <-time.After(patience):
		t.Fatal("nothing arrived")
		return natsbus.Message{}
	}
}

func laneInfo(t testing.TB, b *natsbus.Bus, name string) events.LaneInfo {
	t.Helper()
	info, err := b.LaneInfo(deadline(t), "email", "stable", name)
	require.NoError(t, err)
	return info
}

func TestLaneInfo(t *testing.T) {
	_, b := start(t)
	require.Equal(t, events.LaneInfo{}, laneInfo(t, b, "high"))
	publish(t, b, high, "1", "2", "3")
	require.Equal(t, events.LaneInfo{Pending: 3}, laneInfo(t, b, "high"), "what waits is known before there is a worker")
	require.Equal(t, events.LaneInfo{}, laneInfo(t, b, "low"))

	require.NoError(t, b.EnsureWorkConsumer(deadline(t), "email", "stable", "high"))
	require.NoError(t, b.EnsureWorkConsumer(deadline(t), "email", "stable", "high"), "twice is as good as once")
	require.Equal(t, events.LaneInfo{Exists: true, Pending: 3}, laneInfo(t, b, "high"))
	got, err := lane(t, b, "high").FetchNoWait(deadline(t), 2)
	require.NoError(t, err)
	require.Equal(t, events.LaneInfo{Exists: true, Pending: 1, AckPending: 2}, laneInfo(t, b, "high"))
	for _, m := range got {
		require.NoError(t, m.Ack())
	}
	stacktest.Eventually(t, patience, "acknowledged", func() bool { return laneInfo(t, b, "high").AckPending == 0 })

	require.NoError(t, b.JS().DeleteStream(deadline(t), events.StreamWork))
	require.Equal(t, events.LaneInfo{}, laneInfo(t, b, "high"), "a missing stream holds nothing")
}

func TestLaneFetches(t *testing.T) {
	_, b := start(t)
	publish(t, b, high, numbers(5)...)
	publish(t, b, events.SubjectWork("email", "canary", "high"), "other channel")
	publish(t, b, events.SubjectWork("email", "stable", "low"), "other lane")
	l := lane(t, b, "high")
	require.Equal(t, []string{"0", "1", "2"}, fetch(t, l, 3))
	require.Equal(t, []string{"3", "4"}, fetch(t, l, 10))
	begun := time.Now()
	require.Empty(t, fetch(t, l, 10))
	require.Less(t, time.Since(begun), 500*time.Millisecond, "it does not wait")
	require.Empty(t, fetch(t, l, 0))
	require.Equal(t, []string{"other lane"}, fetch(t, lane(t, b, "low"), 10))
}

func TestLaneKeepsAndGivesBack(t *testing.T) {
	_, b := start(t)
	publish(t, b, high, "kept", "back")
	l := lane(t, b, "high")
	got, err := l.FetchNoWait(deadline(t), 2)
	require.NoError(t, err)
	require.NoError(t, got[1].NakWithDelay(0))
	var again []natsbus.Message
	stacktest.Eventually(t, patience, "it comes again", func() bool {
		again, err = l.FetchNoWait(deadline(t), 2)
		require.NoError(t, err)
		return len(again) > 0
	})
	require.Equal(t, []string{"back"}, dataOf(again))
	require.Equal(t, uint64(2), again[0].Delivered)
	require.NoError(t, again[0].Ack())

	// The server waits 5 s. A worker that says it is busy keeps its signal for longer, and loses it when it stops.
	busy, stop := context.WithTimeout(context.Background(), 7*time.Second)
	defer stop()
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for busy.Err() == nil {
		select {
		case <-every.C:
			require.NoError(t, got[0].InProgress())
			require.Empty(t, fetch(t, l, 1))
		case <-busy.Done():
		}
	}
	l.Listen(1)
	m := arrival(t, l)
	require.Equal(t, "kept", string(m.Data))
	require.NoError(t, m.Ack())
}

func TestLaneArrivals(t *testing.T) {
	_, b := start(t)
	l := lane(t, b, "high")
	var waits []time.Duration
	for i := range 50 {
		l.Listen(1)
		l.Listen(1) // changes nothing
		begun := time.Now()
		publish(t, b, high, fmt.Sprint(i))
		m := arrival(t, l)
		waits = append(waits, time.Since(begun))
		require.Equal(t, fmt.Sprint(i), string(m.Data))
		require.NoError(t, m.Ack())
	}
	slices.Sort(waits)
	t.Logf("publish to arrival: median %s, slowest %s", waits[25], waits[49])
	require.Less(t, waits[25], 50*time.Millisecond)
}

// A worker that is not listening holds nothing: one message was asked for, one came, the rest is there for others.
func TestLaneAsksForOneAtATime(t *testing.T) {
	server, b := start(t)
	publish(t, b, high, numbers(5)...)
	l := lane(t, b, "high")
	l.Listen(1)
	first := arrival(t, l)
	require.Equal(t, "0", string(first.Data))
	require.Equal(t, []string{"1", "2", "3", "4"}, fetch(t, lane(t, connect(t, server), "high"), 10))
	require.NoError(t, first.Ack())
	select {
	case m := <-l.Arrivals():
		t.Fatalf("%s came without being asked for", m.Data)
	default:
	}
}

// A worker with several free slots asks once for several signals, which come as they are published.
func TestLaneListensForSeveral(t *testing.T) {
	server, b := start(t)
	l := lane(t, b, "high")
	require.False(t, l.Asking())
	l.Listen(3)
	for i := range 3 {
		require.True(t, l.Asking())
		publish(t, b, high, fmt.Sprint(i))
		m := arrival(t, l)
		require.Equal(t, fmt.Sprint(i), string(m.Data))
		require.NoError(t, m.Ack())
	}
	require.False(t, l.Asking(), "all that was asked for has come")
	publish(t, b, high, "3")
	require.Equal(t, []string{"3"}, fetch(t, lane(t, connect(t, server), "high"), 10), "not asked for: it is there for others")
	l.Listen(0)
	require.False(t, l.Asking())
}

// A signal that nobody takes goes back and reaches another worker well before the server's 5 s.
func TestLanePassesOnWhatIsNotTaken(t *testing.T) {
	server, b := start(t)
	full := lane(t, b, "high")
	full.Listen(1)
	stacktest.Eventually(t, patience, "the consumer is there", func() bool { return laneInfo(t, b, "high").Exists })
	publish(t, b, high, "1")
	stacktest.Eventually(t, patience, "delivered to the full worker", func() bool { return laneInfo(t, b, "high").AckPending == 1 })
	begun := time.Now()
	free := lane(t, connect(t, server), "high")
	free.Listen(1)
	m := arrival(t, free)
	require.Less(t, time.Since(begun), 4*time.Second)
	require.Equal(t, uint64(2), m.Delivered)
	require.NoError(t, m.Ack())
}

func TestLaneSurvives(t *testing.T) {
	for name, disturb := range map[string]func(*testing.T, *localstack.NATSProcess, *natsbus.Bus){
		"restart": func(t *testing.T, server *localstack.NATSProcess, _ *natsbus.Bus) {
			require.NoError(t, server.Restart(deadline(t)))
		},
		"lost store": func(t *testing.T, server *localstack.NATSProcess, _ *natsbus.Bus) {
			require.NoError(t, server.Wipe(deadline(t)))
		},
		"deleted consumer": func(t *testing.T, _ *localstack.NATSProcess, b *natsbus.Bus) {
			require.NoError(t, b.JS().DeleteConsumer(deadline(t), events.StreamWork, events.WorkConsumer("email", "stable", "high")))
		},
		"deleted stream": func(t *testing.T, _ *localstack.NATSProcess, b *natsbus.Bus) {
			require.NoError(t, b.JS().DeleteStream(deadline(t), events.StreamWork))
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, b := start(t)
			p := publisher(t, connect(t, server), natsbus.PublisherOptions{Deadline: patience})
			listening, polling := lane(t, b, "high"), lane(t, b, "low")
			listening.Listen(1)
			require.Empty(t, fetch(t, polling, 1))
			stacktest.Eventually(t, patience, "the consumer is there", func() bool { return laneInfo(t, b, "high").Exists })
			disturb(t, server, b)

			// Both find their way back by themselves; the listening one without being asked again.
			stacktest.Eventually(t, patience, "the streams are there", func() bool {
				_, err := b.StreamCreated(context.Background(), events.StreamWork)
				return err == nil
			})
			for _, err := range p.Publish(deadline(t), []natsbus.Msg{{Subject: high, Data: []byte("h")}, {Subject: events.SubjectWork("email", "stable", "low"), Data: []byte("l")}}) {
				require.NoError(t, err)
			}
			m := arrival(t, listening)
			require.Equal(t, "h", string(m.Data))
			_ = m.Ack()
			stacktest.Eventually(t, patience, "the polling one gets its signal", func() bool {
				got, err := polling.FetchNoWait(deadline(t), 1)
				return err == nil && len(got) == 1
			})
		})
	}
}

// 2,000 signals, four workers that poll and listen, a restart in the middle: every signal reaches a worker.
func TestLaneWorkersShareThroughARestart(t *testing.T) {
	server, b := start(t)
	const total = 2000
	p := publisher(t, b, natsbus.PublisherOptions{Deadline: patience, AckTimeout: 500 * time.Millisecond})
	ctx, done := context.WithTimeout(context.Background(), 60*time.Second)
	defer done()
	var mu sync.Mutex
	seen := map[string]bool{}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	handle := func(m natsbus.Message) {
		_ = m.Ack()
		mu.Lock()
		defer mu.Unlock()
		if seen[string(m.Data)] = true; len(seen) == total {
			done()
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		l := lane(t, connect(t, server), "high")
		wg.Go(func() {
			for ctx.Err() == nil {
				got, _ := l.FetchNoWait(ctx, 10)
				for _, m := range got {
					handle(m)
				}
				if len(got) > 0 {
					continue
				}
				l.Listen(1)
				select {
				case m := <-l.Arrivals():
					handle(m)
				case <-ctx.Done():
				}
			}
		})
	}
	for at := 0; at < total; at += 100 {
		msgs := make([]natsbus.Msg, 100)
		for i := range msgs {
			msgs[i] = natsbus.Msg{Subject: high, Data: fmt.Append(nil, at+i)}
		}
		for _, err := range p.Publish(deadline(t), msgs) {
			require.NoError(t, err)
		}
		if at == total/2 {
			require.NoError(t, server.Restart(deadline(t)))
		}
	}
	<-ctx.Done()
	wg.Wait()
	require.Equal(t, total, count())
}

func TestScenario05NATSGivesNoMessageUp(t *testing.T) {
	_, b := start(t)
	require.NoError(t, b.EnsureWorkConsumer(deadline(t), "email", "stable", "high"))
	submissions, err := b.SubmitConsumer(deadline(t))
	require.NoError(t, err)
	t.Cleanup(submissions.Close)
	_, err = subscriber(t, b, natsbus.SubscriberOptions{}).Subscribe(deadline(t), running)
	require.NoError(t, err)
	consumers := 0
	for _, name := range []string{events.StreamSubmit, events.StreamWork, events.StreamEvent} {
		stream, err := b.JS().Stream(deadline(t), name)
		require.NoError(t, err)
		listed := stream.ListConsumers(deadline(t))
		for info := range listed.Info() {
			consumers++
			require.Equal(t, -1, info.Config.MaxDeliver, "consumer %s of %s: what is delivered often must not be forgotten", info.Name, name)
		}
		require.NoError(t, listed.Err())
	}
	require.Equal(t, 3, consumers)
}
