package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestScenario40SeriesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: 1})
	const odd = 5000
	tasks := make([]client.Task, odd)
	for i := range tasks {
		tasks[i] = client.NewTask(fmt.Sprintf("odd-%d", i), nil, client.ID(fmt.Sprintf("odd-id-%d", i)), client.BizKey(fmt.Sprintf("odd-key-%d", i)),
			client.Label("odd-label", "a \"quote\", a \\ and 😀"))
	}
	answers, err := w.client.SubmitMany(t.Context(), tasks)
	require.NoError(t, err)
	for _, a := range answers {
		require.True(t, a.Accepted, "%+v", a.Error)
	}
	for i := range 20 {
		err := w.client.Publish(t.Context(), client.NewTask("odd-x", nil, client.ID(fmt.Sprintf("odd-id-%d", i))))[0]
		require.NoError(t, err) // refused later: the id is taken
	}
	w.requireAllSucceeded(w.awaitEnds(append(w.submit(200, work{}), w.submit(20, work{Fail: 1})...), time.Minute))
	dispatcher, notifier := w.system.Service("dispatcher"), w.system.Service("notifier")
	stacktest.Eventually(t, time.Minute, "every task was signalled and told of", func() bool {
		return stacktest.Metric(t, dispatcher, "ax_dispatcher_signalled_tasks_total") >= odd+220 && stacktest.Metric(t, notifier, "ax_notifier_events_total", "pending") >= odd+220
	})
	for _, s := range append([]*localstack.Service{w.workers[0]}, services(w)...) {
		for i := range 50 {
			answer, err := http.Get(fmt.Sprintf("%s/odd-path-%d", s.URL(), i))
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, http.StatusNotFound, answer.StatusCode)
		}
		began := time.Now()
		answer, err := http.Get(s.URL() + "/metrics")
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Less(t, time.Since(began), 5*time.Second)
		most, series := 300, 0
		if s.Name() == "dispatcher" {
			most += 2 * 1000 // two counters of the lanes that came first
		}
		for line := range strings.SplitSeq(string(text), "\n") {
			if line != "" && line[0] != '#' {
				series++
			}
		}
		require.Less(t, series, most, "%s", s.Name())
		for _, name := range []string{"odd-id", "odd-key", "odd-label", "odd-path", "quote"} {
			require.NotContains(t, string(text), name, "%s", s.Name())
		}
	}
}

// services are the processes of the system.
func services(w *world) (all []*localstack.Service) {
	for _, name := range task.Services {
		all = append(all, w.system.Service(name))
	}
	return all
}

// streamTap stands before the database and counts the change streams that are opened through it.
type streamTap struct {
	net.Listener
	opened atomic.Int64
	all    sync.WaitGroup
}

func tapStreams(t *testing.T, target string) *streamTap {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tap := &streamTap{Listener: listener}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		listener.Close()
		tap.all.Wait()
	})
	tap.all.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // closed by Cleanup
			}
			to, err := net.Dial("tcp", target)
			if err != nil {
				from.Close()
				continue
			}
			context.AfterFunc(ctx, func() {
				from.Close()
				to.Close()
			})
			tap.all.Go(func() {
				defer from.Close()
				_, _ = io.Copy(from, to)
			})
			tap.all.Go(func() {
				defer to.Close()
				_, _ = io.Copy(to, io.TeeReader(from, &counter{tap: tap}))
			})
		}
	})
	return tap
}

// counter sees what one connection sends.
type counter struct {
	tap  *streamTap
	tail []byte // of what came before: a word may be cut in two
}

func (c *counter) Write(b []byte) (int, error) {
	word := []byte("$changeStream\x00")
	seen := append(c.tail, b...)
	c.tap.opened.Add(int64(bytes.Count(seen, word)))
	c.tail = append([]byte(nil), seen[max(0, len(seen)-len(word)+1):]...)
	return len(b), nil
}

func TestScenarioM23AndM25TwoStreamsThatOutliveSilence(t *testing.T) {
	t.Parallel()
	db := stacktest.StartMongo(t, localstack.MongoOptions{})
	uri, err := url.Parse(db.URI())
	require.NoError(t, err)
	tap := tapStreams(t, uri.Host)
	uri.Host = tap.Addr().String()
	w := newWorld(t, worldOptions{workers: 1, mongoURI: uri.String()})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range task.Services { // a second one of each
		s, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: name + "-2", Path: localstack.ServicePath(w.bin, name), Env: w.system.Env()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Stop(15*time.Second)) })
		require.NoError(t, s.WaitReady(ctx))
	}
	const subscribers = 500
	var heard atomic.Int64
	for range subscribers {
		_, err := w.client.Subscribe(t.Context(), events.SubscribeOptions{States: []string{"success"}}, func(context.Context, events.Event) error {
			heard.Add(1)
			return nil
		})
		require.NoError(t, err)
	}
	w.requireAllSucceeded(w.awaitEnds(w.submit(5, work{}), time.Minute))
	stacktest.Eventually(t, time.Minute, "everybody heard of it", func() bool { return heard.Load() == 5*subscribers })
	require.EqualValues(t, 2, tap.opened.Load(), "one of the dispatchers and one of the notifiers follow the changes")

	<-time.After(3 * 10 * time.Second) // three times as long as any operation may take
	id := w.submit(1, work{})[0]
	ended := w.awaitEnds([]string{id}, time.Minute)[id]
	require.Less(t, ended.StartedAt.Sub(ended.CreatedAt), 2*time.Second, "it was signalled at once")
	require.EqualValues(t, 2, tap.opened.Load(), "and nothing was opened again")
	require.NoError(t, w.client.Close())
}
