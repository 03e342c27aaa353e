package client

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

func connect(t *testing.T, url string) *Client {
	t.Helper()
	c, err := Connect(Options{NATSURL: url})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestConnectFailsWithoutAServer(t *testing.T) {
	_, err := Connect(Options{NATSURL: "nats://ann:s3cret@127.0.0.1:1"})
	require.ErrorContains(t, err, "connect to NATS")
	require.NotContains(t, err.Error(), "s3cret")
}

// Every call of a closed client says that it is closed; a second Close is no error.
func TestCallsAfterClose(t *testing.T) {
	c := connect(t, stacktest.NATS(t).URL())
	require.NoError(t, c.Close())
	ctx, one := t.Context(), NewTask("email", nil)
	for name, call := range map[string]func() error{
		"Submit":     func() error { _, err := c.Submit(ctx, one); return err },
		"SubmitMany": func() error { _, err := c.SubmitMany(ctx, []Task{one}); return err },
		"Publish":    func() error { return c.Publish(ctx, one)[0] },
		"InsertTx":   func() error { _, err := c.InsertTx(ctx, nil, one); return err },
		"Get":        func() error { _, err := c.Get(ctx, "a"); return err },
		"List":       func() error { _, err := c.List(ctx, events.ListRequest{}); return err },
		"History":    func() error { _, err := c.History(ctx, "a"); return err },
		"Cancel":     func() error { _, err := c.Cancel(ctx, "a"); return err },
		"Rerun":      func() error { _, err := c.Rerun(ctx, "a"); return err },
		"Stats":      func() error { _, err := c.Stats(ctx); return err },
		"Wait":       func() error { _, err := c.Wait(ctx, "a"); return err },
		"Subscribe": func() error {
			_, err := c.Subscribe(ctx, events.SubscribeOptions{}, func(context.Context, events.Event) error { return nil })
			return err
		},
		"PutSchedule": func() error { _, err := c.PutSchedule(ctx, events.Schedule{}); return err },
	} {
		require.ErrorIs(t, call(), ErrClosed, name)
	}
	require.NoError(t, c.Close())
}

func TestWithoutASubmitterTheCallSaysWhatToDo(t *testing.T) {
	c := connect(t, stacktest.NATS(t).URL())
	_, err := c.Get(t.Context(), "a")
	var refused *events.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, events.CodeUnavailable, refused.Code)
	require.Contains(t, refused.Message, "ax dev")
}

// A submitter that is just restarting is waited for.
func TestWaitBeginsBeforeTheSystemAnswers(t *testing.T) {
	url := stacktest.NATS(t).URL()
	c := connect(t, url)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Wait(t.Context(), "a")
		ended <- err
	}()
	stacktest.Eventually(t, 10*time.Second, "it has asked", func() bool { return c.bus.NC().Stats().OutMsgs > 0 })
	serve(t, url, func(int) events.Task { return events.Task{ID: "a", Type: "email", State: "success"} })
	require.NoError(t, <-ended)

	alone := connect(t, stacktest.NATS(t).URL())
	began := time.Now()
	_, err := alone.Wait(t.Context(), "a")
	require.True(t, unavailable(err), "%v", err)
	require.GreaterOrEqual(t, time.Since(began), beginTimeout)
}

// NATS may go away between the first look and the beginning of listening.
func TestListeningBeginsWithoutAConnection(t *testing.T) {
	n := stacktest.NATS(t)
	c := connect(t, n.URL())
	require.NoError(t, n.Down())
	stacktest.Eventually(t, 10*time.Second, "disconnected", func() bool { return !c.bus.NC().IsConnected() })
	told, stop, err := c.ends.listen("email", "a")
	require.NoError(t, err)
	defer stop()
	require.NoError(t, n.Restart(t.Context()))
	stacktest.Eventually(t, 10*time.Second, "connected", func() bool { return c.bus.NC().IsConnected() })
	require.NoError(t, c.bus.NC().Publish(events.SubjectEvent("email", "success"), []byte(`{"id":"a","type":"email","seq":3,"state":"success","reason":"succeeded"}`)))
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
}

// serve answers ax.api.get by a function, as the submitter would.
func serve(t *testing.T, url string, get func(n int) events.Task) {
	t.Helper()
	bus, err := natsbus.Connect(natsbus.Options{URL: url, Name: "test"})
	require.NoError(t, err)
	t.Cleanup(bus.Close)
	asked := 0
	service, err := bus.Serve(natsbus.ServiceOptions{Name: "test", Workers: 1}, natsbus.Endpoint{Subject: events.APIGet,
		Handle: func(context.Context, events.Header, []byte) (any, error) {
			asked++
			return get(asked), nil
		}})
	require.NoError(t, err)
	require.NoError(t, bus.NC().Flush())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, service.Stop(ctx))
	})
}

func TestWaitEndsWithItsContextAndWithTheClient(t *testing.T) {
	url := stacktest.NATS(t).URL()
	serve(t, url, func(int) events.Task { return events.Task{ID: "a", Type: "email", State: string(task.Running)} })
	c := connect(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := c.Wait(ctx, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "running")
	past, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	_, err = c.Wait(past, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded, "also when it ends with the first look")

	ended := make(chan error, 1)
	go func() {
		_, err := c.Wait(t.Context(), "a")
		ended <- err
	}()
	stacktest.Eventually(t, 10*time.Second, "it listens", func() bool {
		c.ends.mu.Lock()
		defer c.ends.mu.Unlock()
		return len(c.ends.types) == 1
	})
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-ended, ErrClosed)
	require.Empty(t, c.ends.types)
}

// A task that ends between the first look and the beginning of listening tells nobody; the second look finds it.
func TestWaitLooksOnceItListens(t *testing.T) {
	url := stacktest.NATS(t).URL()
	serve(t, url, func(n int) events.Task {
		return events.Task{ID: "a", Type: "email", State: []string{"running", "success"}[min(n, 2)-1]}
	})
	ctx, cancel := context.WithTimeout(t.Context(), waitLook/2) // before any further look
	defer cancel()
	got, err := connect(t, url).Wait(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "success", got.State)
}
