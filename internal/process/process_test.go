package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// service is a process under test.
type service struct {
	*Process
	stop  context.CancelFunc
	ended chan error
	log   *lines
}

func start(t *testing.T, c Common, setup func(ctx context.Context, p *Process) error) *service {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	s := &service{stop: stop, ended: make(chan error, 1), log: &lines{}}
	if c.HTTPAddr == "" {
		c.HTTPAddr = "127.0.0.1:0"
	}
	got := make(chan *Process, 1)
	go func() {
		s.ended <- run(ctx, "reaper", c, s.log, func(ctx context.Context, p *Process) error {
			got <- p
			return setup(ctx, p)
		})
	}()
	select {
	case s.Process = <-got:
	case err := <-s.ended:
		require.FailNow(t, "setup was never called", "%v", err)
	}
	return s
}

func (s *service) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(10 * time.Second):
		require.FailNow(t, "the process did not end", s.log.String())
		return nil
	}
}

// get reads a page without keeping the connection, so that nothing of it outlives the test.
func get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	res, err := client.Get("http://" + addr + path)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func ready(t *testing.T, addr string) (int, readiness) {
	t.Helper()
	status, body := get(t, addr, "/readyz")
	var r readiness
	require.NoError(t, json.Unmarshal([]byte(body), &r))
	return status, r
}

func nothing(context.Context, *Process) error { return nil }

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestPagesTellHealthReadinessAndMetrics(t *testing.T) {
	s := start(t, Common{}, func(_ context.Context, p *Process) error {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "ax_reaper_sweeps_total", Help: "sweeps"})
		p.Registry.MustRegister(c)
		c.Inc()
		return nil
	})
	stacktest.Eventually(t, 5*time.Second, "ready", func() bool { status, _ := ready(t, s.Addr()); return status == http.StatusOK })
	status, body := get(t, s.Addr(), "/healthz")
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"service":"reaper","version":"`+Version+`"}`, body)
	status, body = get(t, s.Addr(), "/metrics")
	require.Equal(t, http.StatusOK, status)
	for _, metric := range []string{"ax_reaper_sweeps_total 1", "go_goroutines", "go_build_info"} {
		require.Contains(t, body, metric)
	}
	status, _ = get(t, s.Addr(), "/else")
	require.Equal(t, http.StatusNotFound, status)
	s.stop()
	require.NoError(t, s.wait(t))
}

func TestReadyNamesEverythingItWaitsFor(t *testing.T) {
	release := make(chan struct{})
	down := make(chan error, 1)
	down <- errors.New("no answer from mongodb://ax:s3cret@db/")
	s := start(t, Common{}, func(ctx context.Context, p *Process) error {
		p.Ready("mongodb", func(context.Context) error {
			select {
			case err := <-down:
				down <- err
				return err
			default:
				return nil
			}
		})
		p.Ready("slow", func(ctx context.Context) error {
			if _, ok := ctx.Deadline(); !ok {
				return errors.New("no deadline")
			}
			return nil
		})
		p.Ready("nats", func(context.Context) error { panic("a bug") })
		<-release
		return nil
	})
	status, r := ready(t, s.Addr())
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.False(t, r.Ready)
	require.Len(t, r.WaitingFor, 3)
	require.Equal(t, Wait{"mongodb", "no answer from mongodb://***@db/"}, r.WaitingFor[0])
	require.Equal(t, "nats", r.WaitingFor[1].Name)
	require.Contains(t, r.WaitingFor[1].Reason, "panic: a bug")
	require.Equal(t, Wait{"start", "starting"}, r.WaitingFor[2])

	close(release)
	<-down
	stacktest.Eventually(t, 5*time.Second, "only the broken check is left", func() bool {
		_, r := ready(t, s.Addr())
		return len(r.WaitingFor) == 1 && r.WaitingFor[0].Name == "nats"
	})
	s.stop()
	require.NoError(t, s.wait(t))
}

func TestStopOrder(t *testing.T) {
	var order []string
	var s *service
	note := func(what string) {
		_, r := ready(t, s.Addr())
		require.Equal(t, []Wait{{"stop", "stopping"}}, r.WaitingFor, "not ready while %s", what)
		order = append(order, what)
	}
	assigned := make(chan struct{})
	s = start(t, Common{}, func(_ context.Context, p *Process) error {
		p.OnStop("store", func(ctx context.Context) error {
			_, ok := ctx.Deadline()
			require.True(t, ok)
			note("store")
			return nil
		})
		p.OnStop("bus", func(context.Context) error { note("bus"); return nil })
		p.Go("loop", func(ctx context.Context) error {
			<-ctx.Done()
			<-assigned
			// The loop and the process hear of the end at the same time.
			stacktest.Eventually(t, 5*time.Second, "not ready", func() bool { status, _ := ready(t, s.Addr()); return status != http.StatusOK })
			note("loop")
			return ctx.Err()
		})
		return nil
	})
	stacktest.Eventually(t, 5*time.Second, "ready", func() bool { status, _ := ready(t, s.Addr()); return status == http.StatusOK })
	s.stop()
	close(assigned)
	require.NoError(t, s.wait(t))
	require.Equal(t, []string{"loop", "bus", "store"}, order)
}

func TestAFailingLoopBringsTheProcessDown(t *testing.T) {
	for name, loop := range map[string]func(context.Context) error{
		"tail: lost it":     func(context.Context) error { return errors.New("lost it") },
		"tail: panic: oops": func(context.Context) error { panic("oops") },
		// Nobody asked it to stop, so a cancellation from elsewhere is a failure.
		"tail: context canceled": func(context.Context) error { return context.Canceled },
	} {
		t.Run(name, func(t *testing.T) {
			closed := false
			s := start(t, Common{}, func(_ context.Context, p *Process) error {
				p.OnStop("store", func(context.Context) error { closed = true; return nil })
				p.Go("other", untilDone)
				p.Go("cause", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
				p.Go("tail", loop)
				return nil
			})
			err := s.wait(t)
			require.ErrorContains(t, err, name)
			require.NotContains(t, err.Error(), "cause:", "the others only followed")
			require.True(t, closed)
			require.Contains(t, s.log.String(), "stopped with errors")
		})
	}
}

func TestALoopThatReturnsNilHasDoneItsWork(t *testing.T) {
	done := make(chan struct{})
	s := start(t, Common{}, func(_ context.Context, p *Process) error {
		p.Go("once", func(context.Context) error { close(done); return nil })
		return nil
	})
	<-done
	stacktest.Eventually(t, 5*time.Second, "ready", func() bool { status, _ := ready(t, s.Addr()); return status == http.StatusOK })
	s.stop()
	require.NoError(t, s.wait(t))
}

func TestALoopThatFailsWhileStoppingIsReported(t *testing.T) {
	s := start(t, Common{}, func(_ context.Context, p *Process) error {
		p.Go("flush", func(ctx context.Context) error { <-ctx.Done(); return errors.New("could not save the rest") })
		return nil
	})
	s.stop()
	require.ErrorContains(t, s.wait(t), "flush: could not save the rest")
}

func TestStopKeepsItsDeadline(t *testing.T) {
	block := make(chan struct{})
	var closedFirst bool
	s := start(t, Common{StopTimeout: 200 * time.Millisecond}, func(_ context.Context, p *Process) error {
		p.OnStop("last", func(context.Context) error { closedFirst = true; return nil })
		p.OnStop("stuck", func(context.Context) error { <-block; return nil })
		p.Go("deaf", func(context.Context) error { <-block; return nil })
		p.Go("good", untilDone)
		return nil
	})
	began := time.Now()
	s.stop()
	err := s.wait(t)
	require.Less(t, time.Since(began), 3*time.Second)
	require.ErrorContains(t, err, "still running after 150ms: deaf")
	require.ErrorContains(t, err, "stop stuck: context deadline exceeded")
	require.True(t, closedFirst, "the rest is closed all the same")
	close(block)
}

func TestSetupThatFailsClosesWhatItOpened(t *testing.T) {
	for want, fail := range map[string]func() error{
		"start: no such database": func() error { return errors.New("no such database") },
		"start: panic: oops":      func() error { panic("oops") },
	} {
		closed := false
		s := start(t, Common{}, func(_ context.Context, p *Process) error {
			p.OnStop("bus", func(context.Context) error { closed = true; return nil })
			p.Go("loop", untilDone)
			return fail()
		})
		require.ErrorContains(t, s.wait(t), want)
		require.True(t, closed)
	}
}

func TestAddressInUseIsAnErrorAtOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	var log lines
	err = run(t.Context(), "reaper", Common{HTTPAddr: taken.Addr().String()}, &log, func(context.Context, *Process) error {
		t.Error("setup must not be called")
		return nil
	})
	require.ErrorContains(t, err, "address already in use")
	require.Contains(t, log.String(), "AX_HTTP_ADDR")
}

func TestRetryTriesUntilItWorksAndSaysSoSparingly(t *testing.T) {
	fails := 3
	seen := make(chan readiness, 10)
	var s *service
	addr := make(chan string, 1)
	s = start(t, Common{}, func(ctx context.Context, p *Process) error {
		at := <-addr
		return p.Retry(ctx, "mongodb", func(context.Context) error {
			_, r := ready(t, at)
			seen <- r
			if fails--; fails >= 0 {
				return errors.New("refused by mongodb://ax:s3cret@db/")
			}
			return nil
		})
	})
	addr <- s.Addr()
	stacktest.Eventually(t, 10*time.Second, "ready", func() bool { status, _ := ready(t, s.Addr()); return status == http.StatusOK })
	require.Len(t, seen, 4)
	require.Equal(t, Wait{"mongodb", "trying"}, (<-seen).WaitingFor[0])
	require.Equal(t, Wait{"mongodb", "refused by mongodb://***@db/"}, (<-seen).WaitingFor[0])
	log := s.log.String()
	require.Equal(t, 1, strings.Count(log, "not yet, trying again"), log)
	require.Contains(t, log, "it works now")
	require.Contains(t, log, "failures=3")
	require.NotContains(t, log, "s3cret")
	s.stop()
	require.NoError(t, s.wait(t))
}

func TestStoppingDuringRetryIsClean(t *testing.T) {
	tried := make(chan struct{}, 100)
	s := start(t, Common{}, func(ctx context.Context, p *Process) error {
		return p.Retry(ctx, "mongodb", func(context.Context) error { tried <- struct{}{}; return errors.New("down") })
	})
	<-tried
	s.stop()
	require.NoError(t, s.wait(t))
}

func TestRetryGivesAPermanentErrorBackAtOnce(t *testing.T) {
	wrong := errors.New("readPreference must be primary")
	calls := 0
	s := start(t, Common{}, func(ctx context.Context, p *Process) error {
		return p.Retry(ctx, "mongodb", func(context.Context) error { calls++; return Permanent(wrong) })
	})
	err := s.wait(t)
	require.ErrorIs(t, err, wrong)
	require.Equal(t, 1, calls)
}

func TestLogLines(t *testing.T) {
	defer func(old func() time.Duration) { wallOffset = old }(wallOffset)
	wallOffset = func() time.Duration { return time.Hour }

	var out lines
	log := newLogger(&out, "reaper", Common{LogFormat: "json", LogLevel: "warn"})
	log.Info("not shown")
	log.Warn("shown", slog.Group("g", "time", time.Unix(0, 0)), "task_id", "a")
	var line struct {
		Time      time.Time
		Msg       string
		Component string
		TaskID    string `json:"task_id"`
		G         struct{ Time time.Time }
	}
	require.NoError(t, json.Unmarshal([]byte(out.String()), &line), "one line: %s", out.String())
	require.Equal(t, "shown", line.Msg)
	require.Equal(t, "reaper", line.Component)
	require.Equal(t, "a", line.TaskID)
	require.WithinDuration(t, time.Now().Add(time.Hour), line.Time, time.Minute)
	require.WithinDuration(t, Wall(), line.Time, time.Minute, "the log follows the wall clock")
	require.True(t, line.G.Time.Equal(time.Unix(0, 0)), "other times are left alone")
}

func TestALogLineHasOneComponent(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out lines
		log := newLogger(&out, "notifier", Common{LogFormat: format})
		log.With("lock", "a").With("component", "lead", "epoch", 1).Info("leading", "took", "2s")
		log.With("component", "notify").With("component", "tail").WithGroup("g").With("component", "other").Info("in a group")
		log.Info("itself")
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, got, 3)
		want := []string{`msg=leading component=notifier/lead lock=a epoch=1 took=2s`, `component=notifier/notify/tail g.component=other`, `component=notifier`}
		if format == "json" {
			want = []string{`"component":"notifier/lead","lock":"a","epoch":1,"took":"2s"}`, `"component":"notifier/notify/tail","g":{"component":"other"}}`, `"component":"notifier"}`}
		}
		for i, line := range got {
			require.True(t, strings.HasSuffix(line, want[i]), line)
		}
	}
}
