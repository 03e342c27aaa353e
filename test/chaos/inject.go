package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// play injects the script and returns when the last fault is over. Counts are by kind and target.
func (w *world) play(ctx context.Context, s script) (counts map[string]int, err error) {
	counts = map[string]int{}
	began := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i, track := range trackNames {
		all.Go(func() {
			random := rand.New(rand.NewPCG(s.seed, uint64(100+i)))
			for _, f := range s.tracks[track] {
				if wait(ctx, time.Until(began.Add(f.at))) != nil {
					return
				}
				struck, err := w.inject(ctx, f, random)
				mu.Lock()
				counts[countName(f, struck)]++
				if err != nil {
					errs = append(errs, fmt.Errorf("%v: %w", f, err))
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return counts, errors.Join(errs...)
}

// countName is under what a fault is counted.
func countName(f fault, struck bool) string {
	what := f.target
	if _, other, ok := strings.Cut(f.target, "->"); ok {
		what = "connection to " + other
	} else if service, _, ok := strings.Cut(f.target, "/"); ok {
		what = service
	}
	if !struck {
		what += " (could not be done)"
	}
	return string(f.kind) + " " + what
}

// inject does one fault from its beginning to its end. Struck is false when there was nothing to strike, which the state of the
// system decides: no leader to be found, no NATS to delete signals from.
func (w *world) inject(ctx context.Context, f fault, random *rand.Rand) (struck bool, err error) {
	over := func() { _ = wait(ctx, f.lasts) } // a run that is ended early heals what it struck, too
	healing, done := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer done()
	switch {
	case strings.Contains(f.target, "->"):
		l := w.links[f.target]
		if err := l.strike(f); err != nil {
			return false, err
		}
		over()
		return true, l.heal(healing, f)
	case f.target == "signals":
		err := w.disturbSignals(ctx, f.kind, random)
		over()
		return err == nil, nil
	case f.target == "nats":
		return true, w.strikeNATS(healing, f.kind, over)
	case f.target == "mongo" && f.kind == kill:
		if err := w.mongo.Kill(); err != nil {
			return false, err
		}
		over()
		return true, w.mongo.Restart(healing)
	case f.target == "mongo":
		pid := w.mongo.PID()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return false, err
		}
		over()
		return true, syscall.Kill(pid, syscall.SIGCONT)
	}
	name := f.target
	if service, which, _ := strings.Cut(name, "/"); which == leader {
		if name = w.leaderOf(ctx, service); name == "" {
			return false, nil
		}
	}
	if f.kind == kill {
		if err := w.kill(name); err != nil {
			return false, err
		}
		over()
		return true, w.revive(healing, name)
	}
	s := w.proc(name)
	if err := s.Signal(syscall.SIGSTOP); err != nil {
		return false, err
	}
	over()
	return true, s.Signal(syscall.SIGCONT)
}

func (w *world) strikeNATS(ctx context.Context, k kind, over func()) error {
	if k == pause {
		if err := w.nats.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		over()
		return w.nats.Signal(syscall.SIGCONT)
	}
	if err := w.nats.Kill(); err != nil {
		return err
	}
	if k == full {
		w.nats.SetMaxStore(1)
		if err := w.nats.Start(ctx); err != nil {
			return err
		}
		over()
		if err := w.nats.Kill(); err != nil {
			return err
		}
		w.nats.SetMaxStore(0)
		return w.nats.Start(ctx)
	}
	over()
	if k == wipe {
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.wipes = append(w.wipes, ledger.Now())
		}()
		return w.nats.Wipe(ctx)
	}
	return w.nats.Start(ctx)
}

// leaderOf finds the replica that says it leads, and waits for one while none does; of the submitters, who have no leader, it is the
// first one.
func (w *world) leaderOf(ctx context.Context, service string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*lockTTL)
	defer cancel()
	for {
		for i := range replicas {
			name := fmt.Sprintf("%s/%d", service, i)
			if service == "submitter" || leads(ctx, w.proc(name).URL()) {
				return name
			}
		}
		if wait(ctx, between/2) != nil {
			return ""
		}
	}
}

func leads(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, "ax_lead_leading_bool") && strings.HasSuffix(line, " 1") {
			return true
		}
	}
	return false
}

// disturbSignals deletes the signals that wait, or sends signals of tasks old and new again, each twice, in any order.
func (w *world) disturbSignals(ctx context.Context, k kind, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	js, err := jetstream.New(w.nc)
	if err != nil {
		return err
	}
	if k == drop {
		stream, err := js.Stream(ctx, events.StreamWork)
		if err != nil {
			return err
		}
		return stream.Purge(ctx)
	}
	w.mu.Lock()
	ids := slices.Clone(w.ids[max(0, len(w.ids)-60):])
	w.mu.Unlock()
	ids = append(ids, ids...)
	random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids {
		// What a signal says beside the id may be wrong as well: it decides nothing.
		body, err := json.Marshal(events.Signal{Tasks: []events.SignalTask{{ID: id, Seq: random.Int64N(5) + 1, Attempt: random.IntN(3) + 1, At: time.Now().UnixMilli()}}})
		if err != nil {
			return err
		}
		lane := []task.Lane{task.High, task.Normal, task.Low}[random.IntN(3)]
		// A subject whose signals are full refuses, which is no error.
		if _, err := js.Publish(ctx, events.SubjectWork(workType, task.ChannelStable, string(lane)), body); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// remember offers an accepted task to faults among the signals.
func (w *world) remember(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids = append(w.ids, id)
}

// sortedCounts are the counts as lines.
func sortedCounts(counts map[string]int) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		lines = append(lines, fmt.Sprintf("%3d  %s", counts[name], name))
	}
	return lines
}
