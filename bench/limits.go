package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
)

const (
	limitTypes    = 5000
	limitBacklog  = 100_000
	limitPayloads = 200
	payloadBytes  = 512<<10 - 64 // and the rest of the payload
	limitStuck    = 5
	limitResults  = 20
	resultBytes   = 16 << 20
	mostMemory    = 256 << 20 // of each process of ax
	sweepFor      = 30 * time.Second

	stuckType  = "stuck"  // its handler never returns
	largeType  = "large"  // its handler returns 16 MiB
	parkedType = "parked" // no worker takes it
)

// limits brings ax to what it is said to bear, one thing after the other, and reports the memory that each process came to. It fails
// when a process of ax went over the limit, or a task went astray.
func limits(ctx context.Context, bin, dir string, mongo *localstack.Mongo, out *report) (err error) {
	r, err := startRig(ctx, bin, dir, mongo, "ax_bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	steps := []struct {
		name string
		do   func(context.Context, *report) error
	}{
		{"payloads", r.largePayloads}, {"outcomes", r.badOutcomes}, {"types", r.manyTypes}, {"backlog", r.deepBacklog},
	}
	var over []string
	for _, s := range steps {
		if err := s.do(ctx, out); err != nil {
			return fmt.Errorf("limits: %s: %w", s.name, err)
		}
		peaks, err := r.peaks()
		if err != nil {
			return err
		}
		for _, name := range sortedNames(peaks) {
			out.value("peak_"+s.name+"_"+name, float64(peaks[name])/(1<<20), "MiB", "most that was resident so far")
			if ours := slices.Contains(localstack.ServiceNames, name) || name == "worker"; ours && peaks[name] > mostMemory {
				over = append(over, fmt.Sprintf("%s after %s", name, s.name))
			}
		}
	}
	// Handlers that never return keep a worker from stopping in order.
	if err := r.worker.Kill(); err != nil {
		return err
	}
	if len(over) > 0 {
		return fmt.Errorf("limits: over %d MiB: %s", mostMemory>>20, strings.Join(over, ", "))
	}
	return nil
}

// largePayloads runs tasks with as much payload as is allowed.
func (r *rig) largePayloads(ctx context.Context, out *report) error {
	padding := strings.Repeat("x", payloadBytes)
	began, first := time.Now(), r.ended.Load()
	for n := 0; n < limitPayloads; n += 20 {
		batch := make([]client.Task, 20)
		for i := range batch {
			batch[i] = client.NewTask(noopType, map[string]any{"published": ledger.Now(), "padding": padding})
		}
		if err := firstError(r.client.Publish(ctx, batch...)); err != nil {
			return err
		}
	}
	if err := until(ctx, 3*time.Minute, func() (bool, error) { return r.ended.Load()-first >= limitPayloads, nil }); err != nil {
		return err
	}
	out.value("limit_payloads", limitPayloads/time.Since(began).Seconds(), "tasks/s", "with 512 KiB of payload")
	return nil
}

// badOutcomes runs handlers that never return, and some that return far too much, beside others.
func (r *rig) badOutcomes(ctx context.Context, out *report) error {
	var tasks []client.Task
	for range limitStuck {
		tasks = append(tasks, client.NewTask(stuckType, nil, client.Timeout(2*time.Second), client.MaxAttempts(1)))
	}
	for range limitResults {
		tasks = append(tasks, client.NewTask(largeType, nil))
	}
	for range slots {
		tasks = append(tasks, client.NewTask(noopType, noop{Published: ledger.Now()}))
	}
	if err := firstError(r.client.Publish(ctx, tasks...)); err != nil {
		return err
	}
	ends := map[string]int{}
	for _, t := range tasks {
		var end *task.Task
		if err := until(ctx, 3*time.Minute, func() (bool, error) {
			stored, err := r.store.Get(ctx, t.ID())
			if errors.Is(err, task.ErrNotFound) {
				return false, nil
			}
			end = stored
			return err == nil && stored.State.Terminal(), err
		}); err != nil {
			return fmt.Errorf("task %s: %w", t.ID(), err)
		}
		ends[end.Type+" "+string(end.State)+" "+string(end.History[len(end.History)-1].Reason)]++
	}
	want := map[string]int{stuckType + " failed exhausted": limitStuck, largeType + " failed rejected_result": limitResults, noopType + " success succeeded": slots}
	if got, expected := fmt.Sprint(ends), fmt.Sprint(want); got != expected {
		return fmt.Errorf("they ended as %s, want %s", got, expected)
	}
	out.value("limit_stuck", limitStuck, "tasks", "whose handlers never return ended by their timeout, their slots stay taken")
	out.value("limit_results", limitResults, "tasks", "with results of 16 MiB failed as rejected_result at once")
	return nil
}

// manyTypes submits a task of each of many types, which nobody takes.
func (r *rig) manyTypes(ctx context.Context, out *report) error {
	var tasks []client.Task
	for i := range limitTypes {
		tasks = append(tasks, client.NewTask(fmt.Sprintf("type-%04d", i), nil))
	}
	if err := r.storeAll(ctx, tasks); err != nil {
		return err
	}
	out.value("limit_types", limitTypes, "types", "a pending task each")
	return nil
}

// deepBacklog submits far more tasks than anybody takes, and measures what the services do about them.
func (r *rig) deepBacklog(ctx context.Context, out *report) error {
	var tasks []client.Task
	for range limitBacklog {
		tasks = append(tasks, client.NewTask(parkedType, noop{Published: ledger.Now()}))
	}
	if err := r.storeAll(ctx, tasks); err != nil {
		return err
	}
	if err := wait(ctx, 2*settle); err != nil {
		return err
	}
	before, err := r.usage()
	if err != nil {
		return err
	}
	if err := wait(ctx, sweepFor); err != nil {
		return err
	}
	after, err := r.usage()
	if err != nil {
		return err
	}
	share := func(d time.Duration) float64 { return 100 * d.Seconds() / sweepFor.Seconds() }
	note := fmt.Sprintf("nothing to do, with %d tasks pending that nobody takes", limitBacklog)
	out.value("backlog_cpu_services", share(spent(onlyServices(before), onlyServices(after))), "% of a core", note)
	if !r.mongo.External() {
		out.value("backlog_cpu_database", share(after["database"].cpu-before["database"].cpu), "% of a core", note)
	}
	return nil
}

// storeAll publishes tasks and waits until they are stored.
func (r *rig) storeAll(ctx context.Context, tasks []client.Task) error {
	for batch := range slices.Chunk(tasks, publishers) {
		if err := firstError(r.client.Publish(ctx, batch...)); err != nil {
			return err
		}
	}
	for batch := range slices.Chunk(tasks, publishers) {
		last := batch[len(batch)-1].ID()
		if err := until(ctx, 3*time.Minute, func() (bool, error) {
			_, err := r.store.Get(ctx, last)
			if errors.Is(err, task.ErrNotFound) {
				return false, nil
			}
			return err == nil, err
		}); err != nil {
			return fmt.Errorf("task %s is not stored: %w", last, err)
		}
	}
	return nil
}

// peaks are the most bytes that each process has had resident.
func (r *rig) peaks() (map[string]int64, error) {
	all := map[string]int64{}
	for name, pid := range r.pids() {
		status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
		if err != nil {
			return nil, fmt.Errorf("read peaks: %w", err)
		}
		_, after, found := strings.Cut(string(status), "VmHWM:")
		var kb int64
		if _, err := fmt.Sscanf(after, "%d kB", &kb); !found || err != nil {
			return nil, fmt.Errorf("read peaks: /proc/%d/status has no VmHWM: %w", pid, err)
		}
		all[name] = kb << 10
	}
	return all, nil
}

// largeResult is more JSON than a result may be. It is made once: what handlers take for themselves is not what is measured.
var largeResult = sync.OnceValue(func() json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", resultBytes) + `"`) })
