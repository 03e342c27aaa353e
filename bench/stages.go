package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// stageFor is how long each rate is held.
const stageFor = 10 * time.Second

// mark is when one task reached a stage, by this machine's clock. Claims and ends are in whole milliseconds: the database's.
type mark struct {
	published, signalled, claimed, started, finished time.Time
}

// stages says where the time of single tasks goes at each rate, and which process uses the processor for them.
func stages(ctx context.Context, bin, dir string, mongo *localstack.Mongo, out *report, rates []int) (err error) {
	if mongo.External() {
		return errors.New("stages compare the database's clock with this machine's, so they need a local database: unset AX_MONGO_URI")
	}
	r, err := startRig(ctx, bin, dir, mongo, "ax_bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := wait(ctx, 2*settle); err != nil {
		return err
	}
	done := 0
	for _, rate := range rates {
		n, err := r.stagesAt(ctx, rate, done, out)
		if err != nil {
			return fmt.Errorf("stages at %d/s: %w", rate, err)
		}
		done += n
		if err := wait(ctx, settle); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) stagesAt(ctx context.Context, perSecond, skip int, out *report) (n int, err error) {
	watch, err := r.watchSignals()
	if err != nil {
		return 0, err
	}
	before, err := r.usage()
	if err != nil {
		return 0, err
	}
	begun, begunLedger := time.Now(), ledger.Now()
	published, err := r.publishEvenly(ctx, perSecond, stageFor)
	if err != nil {
		return 0, err
	}
	took := time.Since(begun)
	after, err := r.usage()
	if err != nil {
		return 0, err
	}
	n = len(published)
	runs, err := r.starts(ctx, skip, n)
	if err != nil {
		return 0, err
	}
	if err := until(ctx, time.Minute, func() (bool, error) { return r.ended.Load() >= int64(skip+n), nil }); err != nil {
		return 0, fmt.Errorf("wait for the last end: %w", err)
	}
	marks := make(map[string]*mark, n)
	for id, at := range published {
		marks[id] = &mark{published: at, signalled: watch.at(id)}
	}
	for _, run := range runs {
		if m := marks[run.Task]; m != nil {
			m.started = begun.Add(time.Duration(run.At - begunLedger))
		}
	}
	if err := r.fromHistory(ctx, begun, marks); err != nil {
		return 0, err
	}
	if err := watch.stop(); err != nil {
		return 0, err
	}

	for _, s := range []struct {
		name string
		took func(m *mark) time.Duration
	}{
		{"publish_to_signal", func(m *mark) time.Duration { return m.signalled.Sub(m.published) }},
		{"signal_to_claim", func(m *mark) time.Duration { return m.claimed.Sub(m.signalled) }},
		{"claim_to_start", func(m *mark) time.Duration { return m.started.Sub(m.claimed) }},
		{"start_to_finish", func(m *mark) time.Duration { return m.finished.Sub(m.started) }},
		{"pickup", func(m *mark) time.Duration { return m.started.Sub(m.published) }},
	} {
		var all []time.Duration
		for _, m := range marks {
			all = append(all, s.took(m))
		}
		out.latencies(fmt.Sprintf("stage_%d_%s", perSecond, s.name), sorted(all), fmt.Sprintf("%d/s", perSecond))
	}
	out.value(fmt.Sprintf("stage_%d_signals", perSecond), float64(watch.count), "", fmt.Sprintf("for %d tasks", n))
	for _, name := range sortedNames(after) {
		out.value(fmt.Sprintf("cpu_%d_%s", perSecond, name), 100*(after[name].cpu-before[name].cpu).Seconds()/took.Seconds(), "% of a core", fmt.Sprintf("%d/s", perSecond))
	}
	return n, nil
}

// publishEvenly publishes single tasks at an even rate and returns when each was.
func (r *rig) publishEvenly(ctx context.Context, perSecond int, length time.Duration) (map[string]time.Time, error) {
	n := perSecond * int(length/time.Second)
	published := make(map[string]time.Time, n)
	failed := make(chan error, n)
	begun := time.Now()
	for i := range n {
		if err := wait(ctx, time.Until(begun.Add(time.Duration(i)*time.Second/time.Duration(perSecond)))); err != nil {
			return nil, err
		}
		t := client.NewTask(noopType, noop{Published: ledger.Now()})
		published[t.ID()] = time.Now()
		go func() { failed <- firstError(r.client.Publish(ctx, t)) }()
	}
	for range n {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	return published, nil
}

// fromHistory adds what the database noted.
func (r *rig) fromHistory(ctx context.Context, begun time.Time, marks map[string]*mark) error {
	const window, page = 200 * time.Millisecond, 10_000
	for from, end := begun.Add(-time.Second), time.Now().Add(time.Second); from.Before(end); from = from.Add(window) {
		ended, err := r.store.FinishedBetween(ctx, from, from.Add(window), page)
		if err != nil {
			return err
		}
		for _, t := range ended {
			m := marks[t.ID]
			if m == nil {
				continue
			}
			m.finished = t.FinishedAt
			for _, h := range t.History {
				if h.To == task.Running {
					m.claimed = h.At
				}
			}
		}
	}
	return nil
}

// signalWatch notes when the first signal of each task came by.
type signalWatch struct {
	nc    *nats.Conn
	mu    sync.Mutex
	first map[string]time.Time
	count int
}

func (r *rig) watchSignals() (*signalWatch, error) {
	nc, err := nats.Connect(r.nats.URL())
	if err != nil {
		return nil, fmt.Errorf("watch signals: %w", err)
	}
	w := &signalWatch{nc: nc, first: make(map[string]time.Time)}
	if _, err := nc.Subscribe(events.SubjectWorkAll, func(m *nats.Msg) {
		now := time.Now()
		s, err := events.DecodeSignal(m.Data)
		if err != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.count++
		for _, t := range s.Tasks {
			if w.first[t.ID].IsZero() {
				w.first[t.ID] = now
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("watch signals: %w", err)
	}
	return w, nc.Flush()
}

func (w *signalWatch) at(id string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first[id]
}

func (w *signalWatch) stop() error { return w.nc.Drain() }

// parseRates reads "50,200,500".
func parseRates(text string) ([]int, error) {
	var rates []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > 5000 {
			return nil, fmt.Errorf("-stages %q: give rates from 1 to 5000 a second, with commas between", text)
		}
		rates = append(rates, n)
	}
	return rates, nil
}
