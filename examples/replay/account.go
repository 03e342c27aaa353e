package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/task"
)

// account compares what was submitted with the database, the events and the ledgers, and prints the table.
func (d *driver) account(ctx context.Context, tasks []planned) error {
	stored, err := d.finished(ctx)
	if err != nil {
		return err
	}
	var paths []string
	for _, w := range d.workers {
		paths = append(paths, d.ledger(w.Name()))
	}
	runs, err := ledger.Read(d.deaths, paths...)
	if err != nil {
		return err
	}
	ran := map[string]int{}
	picked, later := waitsOf(runs)
	succeeded := map[string]bool{}
	var lastEnd int64
	for _, r := range runs {
		ran[r.Task]++
		if r.Result == "ok" {
			succeeded[r.Task] = true
		}
		if r.End != ledger.OpenEnded {
			lastEnd = max(lastEnd, r.End)
		}
	}

	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var success, failed, retried, revived, lost int
	for _, p := range tasks {
		t := stored[p.id]
		if t == nil {
			lost++
			fault("task %s is not among the finished tasks of the database", p.id)
			continue
		}
		want := task.Success
		if p.failing >= t.MaxAttempts {
			want = task.Failed
		}
		switch {
		case t.State != want:
			fault("task %s ended %s (its plan: %s)", p.id, t.State, want)
		case d.ends[p.id] != string(t.State):
			fault("task %s is %s in the database; its completion event said %q", p.id, t.State, d.ends[p.id])
		case t.State == task.Success && !succeeded[p.id]:
			fault("task %s is recorded as succeeded; no ledger has a run that did", p.id)
		case ran[p.id] > t.Attempts:
			fault("task %s ran %d times by the ledgers; the database knows of %d attempts", p.id, ran[p.id], t.Attempts)
		}
		if t.State == task.Success {
			success++
		} else {
			failed++
		}
		if t.Failures > 0 {
			retried++
		}
		if t.Losses > 0 {
			revived++
		}
	}
	for id := range stored {
		delete(d.ends, id)
	}
	for id := range d.ends {
		fault("an event told of task %s, which the database does not have", id)
	}
	overlaps := ledger.Overlaps(runs)
	for _, o := range overlaps {
		fault("task %s ran twice at the same time: %s on %s and %s on %s", o.First.Task, o.First.Execution, o.First.Worker, o.Second.Execution, o.Second.Worker)
	}
	if revived == 0 {
		fault("no task was revived, so killing a worker showed nothing; replay again with a longer --minute")
	}

	seconds := time.Duration(lastEnd - d.began).Seconds()
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	row("submitted", len(tasks))
	row("succeeded", success)
	row("failed (by plan)", failed)
	row("retried", retried)
	row("revived after the kill", revived)
	row("lost", lost)
	row("ran twice at the same time", len(overlaps))
	row("executions in the ledgers", len(runs))
	row("tasks a second", fmt.Sprintf("%.0f (as recorded, compressed; %s in all)", float64(len(tasks))/seconds, time.Duration(seconds*float64(time.Second)).Round(time.Second)))
	for _, lane := range task.Lanes {
		if waits := picked[string(lane)]; len(waits) > 0 {
			row("pickup, lane "+string(lane), spread(waits))
		}
	}
	if len(later) > 0 {
		row("pickup, a later attempt", spread(later))
	}
	row("database", d.storeName())
	if err := w.Flush(); err != nil {
		return err
	}
	if len(later) > 0 {
		fmt.Println("\na later attempt: no handler began in the first one. The worker that had claimed the task was killed just then, or gave it back\n" +
			"because its claim was answered too late. The lanes show all other tasks, each by its first attempt.")
	}
	if len(faults) == 0 {
		fmt.Println("\nevery task is accounted for")
		return nil
	}
	for i, f := range faults {
		if i == 20 {
			fmt.Printf("... and %d more\n", len(faults)-i)
			break
		}
		fmt.Println("FAULT:", f)
	}
	return errors.New("not every task is accounted for")
}

// finished reads all ended tasks of the replay from the database.
func (d *driver) finished(ctx context.Context) (map[string]*task.Task, error) {
	now, bound, err := d.store.Now()
	if err != nil {
		return nil, err
	}
	all := map[string]*task.Task{}
	const window, page = time.Second, 10_000
	end := now.Add(bound + time.Second)
	for from := now.Add(-time.Duration(ledger.Now()-d.began) - time.Minute); from.Before(end); from = from.Add(window) {
		tasks, err := d.store.FinishedBetween(ctx, from, from.Add(window), page)
		if err != nil {
			return nil, err
		}
		if len(tasks) == page {
			return nil, fmt.Errorf("more than %d tasks ended within a second", page)
		}
		for _, t := range tasks {
			all[t.ID] = t
		}
	}
	return all, nil
}

func (d *driver) storeName() string {
	switch {
	case d.mongo.Slow():
		return d.mongo.Store() + " (its slow server; `make deps` builds the fast one in 5 to 7 minutes, and then all invocations are replayed)"
	case d.mongo.External():
		return d.mongo.Store() + " (AX_MONGO_URI)"
	}
	return d.mongo.Store()
}

// waitsOf returns how long each task waited from its publication until a handler began for the first time, sorted: by lane where that
// was the task's first attempt, and together where it was a later one. Each task that was begun is in one of them.
func waitsOf(runs []ledger.Execution) (byLane map[string][]time.Duration, later []time.Duration) {
	byLane = map[string][]time.Duration{}
	for _, r := range firstRuns(runs) {
		if r.Attempt == 1 {
			byLane[r.Lane] = append(byLane[r.Lane], time.Duration(r.Waited))
		} else {
			later = append(later, time.Duration(r.Waited))
		}
	}
	for _, waits := range byLane {
		slices.Sort(waits)
	}
	slices.Sort(later)
	return byLane, later
}

// firstRuns is the earliest execution of each task.
func firstRuns(runs []ledger.Execution) map[string]ledger.Execution {
	first := map[string]ledger.Execution{}
	for _, r := range runs {
		if earlier, ok := first[r.Task]; !ok || r.At < earlier.At {
			first[r.Task] = r
		}
	}
	return first
}

// spread shows the percentiles of sorted durations, and how many they are.
func spread(waits []time.Duration) string {
	return fmt.Sprintf("p50 %s  p95 %s  p99 %s  (%d tasks)", percentile(waits, 50), percentile(waits, 95), percentile(waits, 99), len(waits))
}

// percentile takes the nearest rank of sorted durations.
func percentile(sorted []time.Duration, p int) time.Duration {
	i := (len(sorted)*p + 99) / 100
	return sorted[max(i, 1)-1].Round(100 * time.Microsecond)
}
