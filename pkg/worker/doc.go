// Package worker is the SDK for programs that run ax tasks.
//
//	w, err := worker.New(worker.Options{MongoURI: "mongodb://127.0.0.1:27017", NATSURL: "nats://127.0.0.1:4222"})
//	...
//	worker.Handle(w, "email", func(ctx context.Context, args Email) (Receipt, error) {
//		return send(ctx, args)
//	})
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err = w.Run(ctx)
//
// A task is run at least once, and the outcome of each attempt is recorded at most once: the database decides who owns a
// task, under a claim token and a lease which the worker extends while the handler runs. A handler must therefore be ready
// to meet a task again; [Once] keeps a side effect from happening twice. A task with maxLosses 0 is run at most once, as far as lost and
// stopping workers go: once its handler was called, nothing but its own error, panic, timeout or snooze brings it back.
//
// # What a handler returns
//
// A value and no error: the task succeeded and the value, as JSON, is its result. An error: the attempt failed and the
// task's retry policy decides. [NonRetryable] ends the task at once, [RetryAfter] chooses the delay, [Snooze] asks for
// another call later at no cost, [ErrorCode] names the error for filters. A panic and runtime.Goexit fail the attempt only;
// a panic in a goroutine that the handler started takes the process down, as everywhere in Go, and the task comes back when
// its lease ends.
//
// # When the context ends
//
// [context.Cause] tells why: [ErrTimeout], [ErrCancelled], [ErrLeaseLost] or [ErrShutdown]. A handler should return soon
// then. After a timeout the attempt has been reported as failed already and nothing the handler returns changes that; the
// slot is held until it does return. After a cancel everything it returns, success included, ends the task as cancelled.
// After a shutdown an unfinished task is handed back without costing an attempt; one with maxLosses 0 is left to its lease
// instead, after which it fails as worker_lost, because its handler may have done half of the work. After a lost lease nothing is
// reported: another worker may have the task.
//
// # NATS suggests, MongoDB decides
//
// Signals from NATS only say where to look. Without NATS, or without a dispatcher, a worker looks into MongoDB itself
// every few seconds, so work goes on, only slower.
package worker
