package natsbus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/pkg/events"
)

type echo struct {
	Text string `json:"text"`
}

func endpoint(subject string, handle func(ctx context.Context, text string) (any, error)) natsbus.Endpoint {
	return natsbus.Endpoint{Subject: subject, Handle: func(ctx context.Context, _ events.Header, body []byte) (any, error) {
		var e echo
		if err := events.Decode(body, &e); err != nil {
			return nil, err
		}
		return handle(ctx, e.Text)
	}}
}

func serve(t testing.TB, b *natsbus.Bus, opts natsbus.ServiceOptions, endpoints ...natsbus.Endpoint) *natsbus.Service {
	opts.Name = "ax-api"
	s, err := b.Serve(opts, endpoints...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(deadline(t))) })
	require.NoError(t, b.Ready(deadline(t))) // the subscriptions are known to the server
	return s
}

func refusal(t testing.TB, err error) *events.Error {
	t.Helper()
	var e *events.Error
	require.ErrorAs(t, err, &e)
	return e
}

func TestServiceAnswers(t *testing.T) {
	server, b := start(t)
	conflict := &events.Error{Code: events.CodeIDConflict, Field: "id", Value: "a", Message: "taken\r\nfor good"}
	serve(t, b, natsbus.ServiceOptions{},
		endpoint("ax.api.echo", func(_ context.Context, text string) (any, error) { return echo{"<" + text + ">"}, nil }),
		endpoint("ax.api.schedule.put", func(context.Context, string) (any, error) { return nil, fmt.Errorf("wrapped: %w", conflict) }),
		endpoint("ax.api.fail", func(context.Context, string) (any, error) { return nil, errors.New("mongodb://user:secret@host") }),
		endpoint("ax.api.panic", func(context.Context, string) (any, error) { panic("secret") }),
		endpoint("ax.api.big", func(context.Context, string) (any, error) { return echo{strings.Repeat("x", 2<<20)}, nil }),
		endpoint("ax.api.odd", func(context.Context, string) (any, error) { return func() {}, nil }),
	)
	client := connect(t, server)
	ask := func(subject string, req any) (echo, error) {
		var reply echo
		err := client.Request(deadline(t), subject, req, &reply)
		return reply, err
	}
	reply, err := ask("ax.api.echo", echo{"hello"})
	require.NoError(t, err)
	require.Equal(t, "<hello>", reply.Text)
	require.NoError(t, client.Request(deadline(t), "ax.api.echo", echo{"hello"}, nil))

	_, err = ask("ax.api.echo", map[string]string{"txet": "x"})
	require.Equal(t, events.CodeInvalid, refusal(t, err).Code)
	require.Contains(t, refusal(t, err).Message, "did you mean text?")

	_, err = ask("ax.api.schedule.put", echo{})
	require.Equal(t, conflict, refusal(t, err), "as the handler returned it")

	for _, subject := range []string{"ax.api.fail", "ax.api.panic", "ax.api.odd"} {
		_, err = ask(subject, echo{})
		require.Equal(t, events.CodeInternal, refusal(t, err).Code)
		require.NotContains(t, refusal(t, err).Message, "secret")
	}
	_, err = ask("ax.api.big", echo{})
	require.Equal(t, events.CodeTooLarge, refusal(t, err).Code)
	_, err = ask("ax.api.echo", echo{strings.Repeat("x", 2<<20)})
	require.Equal(t, events.CodeTooLarge, refusal(t, err).Code)

	// Any NATS client sees the refusal in the headers of the services API.
	m, err := client.NC().RequestWithContext(deadline(t), "ax.api.schedule.put", []byte("{}"))
	require.NoError(t, err)
	require.Equal(t, "409", m.Header.Get(micro.ErrorCodeHeader))
	require.Equal(t, "taken  for good", m.Header.Get(micro.ErrorHeader))
	require.JSONEq(t, `{"code":"id_conflict","field":"id","value":"a","message":"taken\r\nfor good"}`, string(m.Data))

	// And finds the service.
	m, err = client.NC().RequestWithContext(deadline(t), "$SRV.INFO.ax-api", nil)
	require.NoError(t, err)
	require.Contains(t, string(m.Data), `"ax.api.schedule.put"`)
}

func TestServiceHandlesSideBySide(t *testing.T) {
	server, b := start(t)
	const side = 8
	var inside sync.WaitGroup
	inside.Add(side)
	serve(t, b, natsbus.ServiceOptions{Workers: side}, endpoint("ax.api.meet", func(context.Context, string) (any, error) {
		inside.Done()
		inside.Wait() // returns only when all are inside
		return echo{}, nil
	}))
	client := connect(t, server)
	var wg sync.WaitGroup
	for range side {
		wg.Go(func() {
			if err := client.Request(deadline(t), "ax.api.meet", echo{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestServiceRefusesWhatItCannotHold(t *testing.T) {
	server, b := start(t)
	release := make(chan struct{})
	entered := make(chan struct{}, 10)
	serve(t, b, natsbus.ServiceOptions{Workers: 1, Queue: 1, Deadline: 300 * time.Millisecond}, endpoint("ax.api.slow", func(ctx context.Context, text string) (any, error) {
		entered <- struct{}{}
		if text == "deadline" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		<-release
		return echo{}, nil
	}))
	client := connect(t, server)
	results := make(chan error, 10)
	request := func(text string) { results <- client.Request(deadline(t), "ax.api.slow", echo{text}, nil) }
	go request("handled")
	<-entered
	for range 5 { // one fits into the queue
		go request("")
	}
	for range 4 {
		e := refusal(t, <-results)
		require.Equal(t, events.CodeUnavailable, e.Code)
		require.Contains(t, e.Message, "too many requests")
	}
	select { // the one in the queue waits until nobody can want its answer any more
	case err := <-results:
		t.Fatal(err)
	case <-time.After(350 * time.Millisecond):
	}
	close(release)
	failed := 0
	for range 2 {
		if err := <-results; err != nil {
			failed++
			require.Contains(t, refusal(t, err).Message, "not done within 300ms")
		}
	}
	require.Equal(t, 1, failed, "and is not handled then")
	go request("deadline")
	<-entered
	require.Contains(t, refusal(t, <-results).Message, "whether it took effect is not known")
	require.Empty(t, entered)
}

func TestServiceStopAnswersWhatItTook(t *testing.T) {
	server, b := start(t)
	var handled atomic.Int64
	release := make(chan struct{})
	entered := make(chan struct{}, 100)
	s := serve(t, b, natsbus.ServiceOptions{Workers: 2}, endpoint("ax.api.slow", func(context.Context, string) (any, error) {
		entered <- struct{}{}
		<-release
		handled.Add(1)
		return echo{}, nil
	}))
	client := connect(t, server)
	results := make(chan error, 10)
	for range 6 {
		go func() { results <- client.Request(deadline(t), "ax.api.slow", echo{}, nil) }()
	}
	<-entered
	<-entered
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Stop(short), context.DeadlineExceeded)
	close(release)
	require.NoError(t, s.Stop(deadline(t)))
	answered := 0
	for range 6 {
		if err := <-results; err == nil {
			answered++
		} else { // came when the service had stopped, and was told so
			require.Equal(t, events.CodeUnavailable, refusal(t, err).Code)
		}
	}
	require.Equal(t, int(handled.Load()), answered)
	require.GreaterOrEqual(t, answered, 2)

	err := client.Request(deadline(t), "ax.api.slow", echo{}, nil)
	require.Contains(t, refusal(t, err).Message, "nobody answers on ax.api.slow: start the submitter service")
}

func TestRequestFailsClearly(t *testing.T) {
	server, b := start(t)
	sub, err := b.NC().Subscribe("ax.api.*", func(m *nats.Msg) {
		switch m.Subject {
		case "ax.api.odd":
			_ = m.Respond([]byte("{"))
		case "ax.api.foreign":
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{micro.ErrorCodeHeader: {"418"}, micro.ErrorHeader: {"teapot"}}})
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	require.NoError(t, b.Ready(deadline(t)))
	client := connect(t, server)

	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	e := refusal(t, client.Request(short, "ax.api.silent", echo{}, nil))
	require.Equal(t, events.CodeUnavailable, e.Code)
	require.Contains(t, e.Message, "no answer on ax.api.silent")

	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, client.Request(cancelled, "ax.api.silent", echo{}, nil), context.Canceled)

	require.ErrorContains(t, client.Request(deadline(t), "ax.api.odd", echo{}, &echo{}), "cannot be read")
	require.Contains(t, refusal(t, client.Request(deadline(t), "ax.api.foreign", echo{}, nil)).Message, "418: teapot")
	require.Error(t, client.Request(deadline(t), "ax.api.silent", func() {}, nil))

	require.NoError(t, server.Down())
	stacktest.Eventually(t, patience, "disconnected", func() bool { return !client.NC().IsConnected() })
	require.Contains(t, refusal(t, client.Request(deadline(t), "ax.api.silent", echo{}, nil)).Message, "NATS is out of reach")
}

func TestServiceSurvivesARestart(t *testing.T) {
	server, b := start(t)
	serve(t, b, natsbus.ServiceOptions{}, endpoint("ax.api.echo", func(_ context.Context, text string) (any, error) { return echo{text}, nil }))
	client := connect(t, server)
	require.NoError(t, server.Restart(deadline(t)))
	stacktest.Eventually(t, patience, "it answers again", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return client.Request(ctx, "ax.api.echo", echo{"x"}, nil) == nil
	})
}
