package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// closing bounds what comes after the stop timeout: leaving the registry and closing connections.
const closing = time.Second

// stop ends the work in order: nothing new is taken, what was not begun goes back, handlers go on for a while, then their
// contexts end, what they came to is recorded, and what is left then is left to its lease.
func (e *engine) stop(stopFetching, stopWorking context.CancelFunc, fetchers, workers *sync.WaitGroup) error {
	begun := time.Now()
	until := func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithDeadline(context.Background(), begun.Add(d))
	}
	hard := e.opts.StopTimeout - min(e.opts.StopTimeout/4, 2*time.Second) // the rest is for recording
	e.log.Info("worker stops", "within", e.opts.StopTimeout)

	e.stopping.Store(true) // a claim under way hands its tasks back
	e.intake.close()
	stopFetching()
	whole, rests := e.intake.unstartable(begun, true)
	if b := e.bus.Load(); b != nil {
		ctx, cancel := until(hard / 4)
		e.intake.giveBack(ctx, b, whole, rests)
		cancel()
	}

	soft, cancel := until(min(e.opts.SoftStop, hard))
	wait(soft, &e.claimer.claims) // what they win is handed back, but one may have begun its tasks a moment ago
	left := e.runs.await(soft)
	cancel()
	if len(left) > 0 {
		e.log.Info("handlers are told to stop", "count", len(left))
		e.runs.shutdown()
		ctx, cancel := until(hard)
		left = e.runs.await(ctx)
		cancel()
	}

	ctx, cancel := until(e.opts.StopTimeout)
	defer cancel()
	wait(ctx, &e.claimer.claims)
	last, forget := context.WithTimeout(ctx, resolveTimeout)
	e.claimer.resolve(last) // what turns up later comes back when its lease ends
	forget()
	unrecorded := e.finisher.drain(ctx)
	stopWorking()
	fetchers.Wait()
	workers.Wait()
	e.claimer.claims.Wait()
	e.leave()
	return e.farewell(left, unrecorded)
}

// wait waits for a group, or for ctx to end; the group is waited for again later.
func wait(ctx context.Context, group *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		group.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// leave takes the worker out of the registry and closes the bus.
func (e *engine) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := e.store.RemoveWorker(ctx, task.WorkerInfo{ID: e.opts.ID, Host: e.beats.info.Host, PID: e.beats.info.PID}); err != nil {
			e.log.Info("the worker's entry is left to expire", "err", err)
		}
	})
	if b := e.bus.Load(); b != nil {
		both.Go(b.Close)
	}
	both.Wait()
}

// farewell says what could not be brought to an end.
func (e *engine) farewell(left []*execution, unrecorded int) error {
	var problems []error
	if len(left) > 0 {
		names := ""
		for i, x := range left {
			x.logger(e.log).Error("handler ignores the end of its context, the task is left to its lease")
			if i < 10 {
				names += " " + x.String() + ";"
			}
		}
		problems = append(problems, fmt.Errorf("stop: %d %w; left to their leases:%s", len(left), ErrDeaf, names[:len(names)-1]))
	}
	if unrecorded > 0 {
		problems = append(problems, fmt.Errorf("stop: %d results could not be recorded in time; their tasks come back when their leases end", unrecorded))
	}
	e.log.Info("worker stopped", "left", len(left), "unrecorded", unrecorded)
	return errors.Join(problems...)
}
