package worker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// fit reports whether a task that was won may be run: it is of the type it was taken for and of this worker's channel, the
// answer came soon enough for its lease, and the worker does not stop.
func (e *engine) fit(t *task.Task, wanted *kind, sent time.Time) bool {
	return !e.stopping.Load() && t.Type == wanted.name && t.Channel == e.opts.Channel &&
		time.Since(sent) < e.opts.Lease-e.opts.Lease/5
}

func (e *engine) newExecution(t *task.Task, sent time.Time) *execution {
	return &execution{task: t, kind: e.kinds[t.Type], runs: e.runs, store: e.store, log: e.quiet, confirmed: sent, end: func(error) {}}
}

// start runs the handlers of tasks that were won. sent is when their claim was.
func (e *engine) start(tasks []*task.Task, sent time.Time) {
	for _, t := range tasks {
		x := e.newExecution(t, sent)
		x.started = time.Now()
		if x.note = e.opts.Confirmed; x.note != nil {
			x.note(t.ExecutionID(), e.runs.until(sent))
		}
		deadline := x.started.Add(t.Timeout)
		x.public = publicTask(t, deadline)
		// The handler's context descends from nothing: whether it may go on is decided here, case by case, with a cause.
		ctx, end := context.WithCancelCause(context.WithValue(context.Background(), contextKey{}, x))
		ctx, release := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
		x.ctx, x.end = ctx, end
		e.runs.add(x)
		e.pickup(x)
		go func() {
			defer release()
			e.supervise(x)
		}()
	}
}

// supervise runs one handler to its end.
func (e *engine) supervise(x *execution) {
	// The timeout is reported when it happens, not when a handler that ignores it comes back.
	noted := make(chan struct{})
	forget := context.AfterFunc(x.ctx, func() {
		defer close(noted)
		if context.Cause(x.ctx) == ErrTimeout && e.runs.timedOut(x) {
			x.logger(e.log).Warn("task timed out")
			e.report(x, x.timeout())
		}
	})
	result := goexit
	defer func() { // also when the handler ended its goroutine
		if !forget() {
			<-noted
		}
		e.returned(x, result, context.Cause(x.ctx))
	}()
	if context.Cause(x.ctx) == ErrShutdown { // a stop came in between: nothing was begun
		result = ending{err: context.Canceled}
		return
	}
	x.begun = true
	result = x.kind.invoke(x.ctx, x.public)
}

// returned frees the slot and reports what the handler came to.
func (e *engine) returned(x *execution, result ending, cause error) {
	ran := time.Since(x.started)
	switch e.runs.leave(x, time.Now()) {
	case reporting:
		if result.err != nil {
			x.logger(e.log).Debug("handler failed", "err", safeText(fmt.Sprint(result.err)))
		}
		if result.crash != nil {
			x.logger(e.log).Error("handler crashed", "err", safeText(result.crash.message), "stack", safeText(result.crash.stack))
		}
		e.conclude(x, x.outcome(result, cause))
	case fenced:
		e.conclude(x, x.report(task.Released, nil))
	}
	x.end(nil) // release what hangs on the context
	e.metrics.runSeconds.WithLabelValues(x.kind.name).Observe(ran.Seconds())
	e.intake.returned(x.kind, ran)
	e.runs.out(x) // last: a stop waits for it
}

// conclude reports what a handler came to, but for a task that may be run at most once and whose handler was interrupted: it may
// have done half of its work, and released it would be run again. It is left to its lease, after which the reaper ends it.
func (e *engine) conclude(x *execution, o task.Outcome) {
	if o.Kind == task.Released && x.begun && x.task.MaxLosses == 0 {
		x.logger(e.log).Warn("handler was interrupted and its task may lose no worker (maxLosses 0): it is left to its lease and will fail as worker_lost")
		e.runs.settle(x)
		return
	}
	e.report(x, o)
}

// report hands an outcome to the finisher.
func (e *engine) report(x *execution, o task.Outcome) {
	o.Worker, o.Random = e.opts.ID, rand.Float64()
	e.metrics.tasks.WithLabelValues(o.Task.Type, outcomeNames[o.Kind]).Inc()
	e.finisher.add(x, o)
}

// handBack releases tasks of a claim that are not run here, without cost to them.
func (e *engine) handBack(tasks []*task.Task, sent time.Time) {
	for _, t := range tasks {
		x := e.newExecution(t, sent)
		x.verdict, x.returned = fenced, true
		e.runs.hold(x)
		e.report(x, x.report(task.Released, nil))
	}
}

// lost notes that the database has said that an execution is no longer ours.
func (e *engine) lost(x *execution) {
	e.metrics.leaseLost.Inc()
	x.logger(e.log).Warn("lease lost: another worker may have the task, this attempt changes nothing")
}

var outcomeNames = map[task.OutcomeKind]string{
	task.Succeeded: "success", task.FailedAttempt: "failure", task.FailedForGood: "non_retryable", task.RejectedResult: "rejected_result",
	task.Released: "released", task.Snoozed: "snoozed", task.CancelledByRequest: "cancelled",
}

func (e *execution) report(kind task.OutcomeKind, failed *task.Error) task.Outcome {
	return task.Outcome{Owned: e.owned(), Kind: kind, Error: failed, Task: e.task}
}

func (e *execution) logger(log *slog.Logger) *slog.Logger {
	return log.With("task_id", e.task.ID, "task_type", e.task.Type, "attempt", e.task.Attempts)
}
