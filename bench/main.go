// Command bench measures ax beside the ceiling of the machine it runs on, in one run: what the bare driver does with the same
// documents, indexes and commands, and what ax does end to end at shipped defaults. Only the ratios of one run mean anything: the
// speed of a machine changes, so the ceiling is taken before and after.
//
// It prints one JSON line per figure as it is measured, and a table at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/ax-scheduler/ax/internal/localstack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == workerCommand {
		return runWorker(ctx)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	bin := flags.String("bin", "dist", "folder with the services' programs; `make build` fills it")
	quick := flags.Bool("quick", false, "only the burst and its ceiling, about a minute")
	stageRates := flags.String("stages", "", "instead of all else: where the time of single tasks goes at these rates a second, such as 50,200,500")
	atLimits := flags.Bool("limits", false, "instead of all else: what ax is said to bear, and the memory of each process")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var rates []int
	if *stageRates != "" {
		var err error
		if rates, err = parseRates(*stageRates); err != nil {
			return err
		}
	}
	abs, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ax-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	mongo, err := localstack.StartMongo(ctx, localstack.MongoOptions{Log: os.Stderr, AllowBuild: true})
	if err != nil {
		return err
	}
	defer mongo.Stop()
	out := &report{out: os.Stdout, store: mongo.Store()}
	switch {
	case rates != nil:
		err = stages(ctx, abs, dir, mongo, out, rates)
	case *atLimits:
		err = limits(ctx, abs, dir, mongo, out)
	default:
		err = measure(ctx, abs, dir, mongo, out, *quick)
	}
	return errors.Join(err, out.table())
}

func measure(ctx context.Context, bin, dir string, mongo *localstack.Mongo, out *report, quick bool) (err error) {
	before, err := measureCeiling(ctx, mongo.URI(), "ax_bench_ceiling")
	if err != nil {
		return fmt.Errorf("ceiling: %w", err)
	}
	out.ceiling("before", before)

	if !quick {
		chain, err := measureChain(ctx, mongo.URI(), "ax_bench_chain")
		if err != nil {
			return fmt.Errorf("chain: %w", err)
		}
		out.latencies("chain", chain, "insert, change event, claim, find; bare, one at a time")
	}

	r, err := startRig(ctx, bin, dir, mongo, "ax_bench")
	if err != nil {
		return err
	}
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		return r.stop()
	}
	defer stop()
	done := 0
	if !quick {
		if err := wait(ctx, 2*settle); err != nil {
			return err
		}
		share, err := r.idle(ctx)
		if err != nil {
			return err
		}
		out.value("idle_cpu", 100*share, "% of a core", "all five services together, nothing to do")
		for _, perSecond := range []int{200, 500} {
			waits, err := r.steady(ctx, perSecond, done)
			if err != nil {
				return err
			}
			done += len(waits)
			out.latencies(fmt.Sprintf("pickup_%d", perSecond), waits, fmt.Sprintf("publish to handler start, %d/s", perSecond))
			if err := wait(ctx, settle); err != nil {
				return err
			}
		}
	}
	burst, lag, cpu, err := r.burst(ctx)
	if err != nil {
		return err
	}
	all, err := r.usage()
	if err != nil {
		return err
	}
	if err := stop(); err != nil { // nothing else runs beside the second ceiling
		return err
	}
	after, err := measureCeiling(ctx, mongo.URI(), "ax_bench_ceiling")
	if err != nil {
		return fmt.Errorf("ceiling: %w", err)
	}
	out.ceiling("after", after)
	ceiling := max(before.chain(), after.chain())
	out.add(figure{Figure: "burst", Value: burst, Unit: "tasks/s", Ceiling: ceiling, Ratio: burst / ceiling,
		Note: fmt.Sprintf("%d no-op tasks, %d slots, all events published and consumed", burstTasks, slots)})
	out.value("burst_event_lag", lag.Seconds()*1000, "ms", "last recorded success to last completion event received")
	var total time.Duration
	for _, name := range sortedNames(cpu) {
		out.value("cpu_per_task_"+name, float64(cpu[name])/float64(time.Microsecond), "us", "during the burst")
		if name != "bench" {
			total += cpu[name]
		}
	}
	out.value("cpu_per_task", float64(total)/float64(time.Microsecond), "us", "services, worker, NATS and database")
	for _, name := range sortedNames(all) {
		out.value("memory_"+name, float64(all[name].rss)/(1<<20), "MiB", "resident after the burst")
	}
	return nil
}

func (r *report) ceiling(when string, c ceiling) {
	r.value("ceiling_insert_"+when, c.insert, "tasks/s", "bare driver, best of batches 100/500/1000 x clients 2/4/8")
	r.value("ceiling_claim_"+when, c.claim, "tasks/s", "update and find")
	r.value("ceiling_finish_"+when, c.finish, "tasks/s", "")
	r.value("ceiling_"+when, c.chain(), "tasks/s", "insert, claim, find and finish, one after the other")
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
