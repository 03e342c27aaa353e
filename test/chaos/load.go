package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	workType = "work"
	tickType = "tick"
	schedule = "ticks"
	perBatch = 6
	between  = 500 * time.Millisecond
)

// work is the payload of the ledger worker.
type work struct {
	RunMs int  `json:"runMs"`
	Fail  int  `json:"fail"`
	Deaf  bool `json:"deaf"`
}

// plan is a task to submit. It is a function of the seed and its number alone.
type plan struct {
	task   client.Task
	door   door
	ends   []task.State
	cancel bool // asked for as soon as it is accepted
}

func newPlan(seed uint64, n int) plan {
	random := rand.New(rand.NewPCG(seed, 1_000_000+uint64(n)))
	p := plan{door: stored, ends: []task.State{task.Success}}
	if random.IntN(2) == 0 {
		p.door = queued
	}
	do := work{RunMs: random.IntN(200)}
	// Losses are what this is about, so no number of them ends a task.
	opts := []client.Option{client.ID(fmt.Sprintf("c%d-%d", seed, n)), client.MaxLosses(1000), client.Priority(random.IntN(10)),
		client.Retry(200*time.Millisecond, 2, time.Second, 0.5)}
	switch dice := random.IntN(100); {
	case dice < 33:
	case dice < 51:
		do.RunMs = 1000 + random.IntN(2000)
	case dice < 69: // longer than a lease: heartbeats keep it, and whatever strikes a worker finds some of them
		do.RunMs = 6000 + random.IntN(4000)
	case dice < 76:
		do.RunMs, do.Deaf = 6000+random.IntN(4000), true
	case dice < 86:
		do.Fail = 1 + random.IntN(2)
	case dice < 90:
		do.Fail, p.ends = 99, []task.State{task.Failed}
		opts = append(opts, client.MaxAttempts(2))
	case dice < 95:
		opts = append(opts, client.Delay(time.Duration(1000+random.IntN(5000))*time.Millisecond))
	default:
		p.cancel, p.ends = true, []task.State{task.Success, task.Cancelled}
		do.RunMs = 2000
	}
	p.task = client.NewTask(workType, do, opts...)
	return p
}

// load submits tasks until told to stop, and what was not acknowledged again and again, as a careful caller does.
type load struct {
	client   *client.Client
	seed     uint64
	next     int
	again    []plan
	accepted []submission
	refused  []violation
	cancels  int
	put      bool // the schedule is there
	accepts  func(id string)
}

// run submits at a steady pace until ctx ends.
func (l *load) run(ctx context.Context) {
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var batch []plan
		for range perBatch {
			batch = append(batch, newPlan(l.seed, l.next))
			l.next++
		}
		most := min(len(l.again), 10*perBatch)
		batch, l.again = append(batch, l.again[:most]...), l.again[most:]
		l.submit(batch)
		if !l.put {
			asked, done := context.WithTimeout(context.Background(), 2*time.Second)
			_, err := l.client.PutSchedule(asked, events.Schedule{Name: schedule, Cron: "@every 2s", Task: events.SubmitRequest{Type: tickType}})
			l.put = err == nil
			done()
		}
	}
}

// rest submits what was never acknowledged, now that nothing stands in the way.
func (l *load) rest(ctx context.Context) error {
	for len(l.again) > 0 {
		batch := l.again
		l.again = nil
		l.submit(batch)
		if err := wait(ctx, between); err != nil {
			return fmt.Errorf("submit the rest: %d tasks are not accepted: %w", len(l.again), err)
		}
	}
	return nil
}

// submit tries each plan once.
func (l *load) submit(batch []plan) {
	// What was sent is waited for even when the run ends, within bounds.
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	of := map[door][]plan{}
	for _, p := range batch {
		of[p.door] = append(of[p.door], p)
	}
	answers, err := l.client.SubmitMany(ctx, tasksOf(of[stored]))
	for i, p := range of[stored] {
		switch {
		case i < len(answers) && answers[i].Accepted:
			l.accept(ctx, p)
		case err == nil && answers[i].Error != nil && answers[i].Error.Code != events.CodeUnavailable:
			l.refused = append(l.refused, violation{"refused", p.task.ID(), answers[i].Error.Error()})
		default:
			l.again = append(l.again, p)
		}
	}
	for i, err := range l.client.Publish(ctx, tasksOf(of[queued])...) {
		if p := of[queued][i]; err == nil {
			l.accept(ctx, p)
		} else {
			l.again = append(l.again, p)
		}
	}
}

func (l *load) accept(ctx context.Context, p plan) {
	l.accepted = append(l.accepted, submission{id: p.task.ID(), door: p.door, accepted: ledger.Now(), ends: p.ends})
	l.accepts(p.task.ID())
	if p.cancel {
		if _, err := l.client.Cancel(ctx, p.task.ID()); err == nil {
			l.cancels++ // one that came too early or not at all is none
		}
	}
}

func tasksOf(plans []plan) []client.Task {
	var tasks []client.Task
	for _, p := range plans {
		tasks = append(tasks, p.task)
	}
	return tasks
}

// wait waits for a while, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
