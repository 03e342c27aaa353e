package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// settled is how long after the last fault a system may take until everything has ended and is published: what is left of the
// longest task, a new leader, two leases and the reaper's wait after an outage, and then the tasks themselves on a slow machine.
func settled(tasks int) time.Duration {
	return time.Minute + 6*lease + time.Duration(tasks)*40*time.Millisecond
}

// settle waits until every task that ax accepted has ended and has its events, for no longer than [settled], and then collects what is
// there. What has not come by then is for the judges.
func (w *world) settle(ctx context.Context, accepted []submission) (evidence, error) {
	e := evidence{submitted: accepted, tasks: map[string]*task.Task{}, dead: map[string]bool{}, wipes: w.wipes}
	bounded, cancel := context.WithTimeout(ctx, settled(len(accepted)))
	defer cancel()
	open := accepted
	for {
		var still []submission
		for _, s := range open {
			t, err := w.store.Get(ctx, s.id)
			switch {
			case err != nil && !errors.Is(err, task.ErrNotFound):
				return e, err
			case err == nil:
				e.tasks[s.id] = t
			}
			if err != nil && !e.excused(s) || err == nil && !t.State.Terminal() {
				still = append(still, s)
			}
		}
		open = still
		if len(open) == 0 || wait(bounded, between) != nil {
			break
		}
	}
	// With the schedule still firing: of one that is deleted nobody can tell which slots it should have fired.
	w.audit(ctx, "live")
	if err := w.endSchedule(ctx); err != nil {
		return e, err
	}
	for {
		fired, err := w.openTicks(ctx)
		if err != nil {
			return e, err
		}
		if fired == 0 || wait(bounded, between) != nil {
			break
		}
	}
	if err := w.collectTicks(ctx, &e); err != nil {
		return e, err
	}
	for {
		var err error
		if e.events, err = w.readEvents(ctx); err != nil {
			return e, err
		}
		if err := w.collectDead(ctx, &e); err != nil {
			return e, err
		}
		if len(missingEvents(e))+len(deadLetters(e)) == 0 || wait(bounded, between) != nil {
			break
		}
	}
	w.checkAlive()
	e.exited = w.exited
	var err error
	e.runs, err = ledger.Read(w.deaths, w.ledgers...)
	return e, err
}

// endSchedule deletes the schedule.
func (w *world) endSchedule(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		asked, done := context.WithTimeout(ctx, 5*time.Second)
		err := w.client.DeleteSchedule(asked, schedule)
		done()
		if refused, ok := errors.AsType[*events.Error](err); err == nil || ok && refused.Code == events.CodeNotFound {
			return nil
		}
		if wait(ctx, between) != nil {
			return fmt.Errorf("delete the schedule: %w", err)
		}
	}
}

// openTicks counts the tasks of the schedule that have not ended.
func (w *world) openTicks(ctx context.Context) (n int, err error) {
	for _, state := range []task.State{task.Pending, task.Running} {
		page, err := w.store.List(ctx, tickType, state, 100, "")
		if err != nil {
			return 0, err
		}
		n += len(page)
	}
	return n, nil
}

// collectTicks adds the tasks of the schedule, which nobody submitted.
func (w *world) collectTicks(ctx context.Context, e *evidence) error {
	for after := ""; ; {
		page, err := w.store.List(ctx, tickType, "", 100, after)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, listed := range page {
			t, err := w.store.Get(ctx, listed.ID)
			if err != nil {
				return err
			}
			e.tasks[t.ID] = t
			e.submitted = append(e.submitted, submission{id: t.ID, door: fired, ends: []task.State{task.Success}})
		}
		after = page[len(page)-1].ID
	}
}

func (w *world) collectDead(ctx context.Context, e *evidence) error {
	for id, t := range e.tasks {
		if t.State != task.Failed || e.dead[id] {
			continue
		}
		_, err := w.store.DeadLetter(ctx, id)
		if err != nil && !errors.Is(err, task.ErrNotFound) {
			return err
		}
		e.dead[id] = err == nil
	}
	return nil
}

// readEvents reads AX_EVENT from its beginning to its present end.
func (w *world) readEvents(ctx context.Context) ([]events.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	js, err := jetstream.New(w.nc)
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, events.StreamEvent)
	if err != nil {
		return nil, fmt.Errorf("read the events: %w", err)
	}
	info, err := stream.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return nil, err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, fmt.Errorf("read the events: %w", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read the events: %w", err)
	}
	defer messages.Stop()
	var all []events.Event
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read the events: %w", err)
		}
		var one events.Event
		if err := json.Unmarshal(msg.Data(), &one); err != nil {
			return nil, fmt.Errorf("read the events: %w", err)
		}
		all = append(all, one)
		meta, err := msg.Metadata()
		if err != nil {
			return nil, fmt.Errorf("read the events: %w", err)
		}
		if meta.Sequence.Stream >= info.State.LastSeq {
			return all, nil
		}
	}
}

// audit lets ax check itself. What it finds is a violation like the judges' own, and so is that it cannot check.
func (w *world) audit(ctx context.Context, when string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, localstack.ServicePath(w.bin, "ax"), "verify", "--events")
	cmd.Env = append(cmd.Environ(), "AX_MONGO_URI="+w.mongo.URI(), "AX_MONGO_DB="+database, "AX_NATS_URL="+w.nats.URL())
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.found = append(w.found, violation{"ax verify", when, fmt.Sprintf("%v:\n%s", err, out)})
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	w.said = append(w.said, when+": "+strings.Join(lines[max(0, len(lines)-2):], "; "))
}
