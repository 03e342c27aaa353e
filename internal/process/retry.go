package process

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	retryFirst = 250 * time.Millisecond
	retryMost  = 10 * time.Second
	// retryQuiet is how long Retry keeps silent about failures after it logged one.
	retryQuiet = 30 * time.Second
)

// Permanent marks an error that trying again cannot mend: Retry gives it back at once.
func Permanent(err error) error { return backoff.Permanent(err) }

// Retry calls fn until it succeeds, with growing, jittered pauses (250 ms to 10 s). It gives up only when ctx ends or
// the error is Permanent. The first failure is logged, then one line in 30 s, then the success; meanwhile /readyz names
// what is being waited for. fn bounds its own time.
func (p *Process) Retry(ctx context.Context, what string, fn func(ctx context.Context) error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = retryFirst, retryMost

	p.health.wait(what, "trying")
	defer p.health.done(what)
	var failures int
	var logged time.Time
	start := time.Now()
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, fn(ctx) },
		backoff.WithBackOff(pauses),
		backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, next time.Duration) {
			failures++
			reason := Redact(err.Error())
			p.health.wait(what, reason)
			if logged.IsZero() || time.Since(logged) >= retryQuiet {
				logged = time.Now()
				p.Log.Warn("not yet, trying again", "what", what, "failures", failures, "next", next.Round(time.Millisecond), "err", reason)
			}
		}))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if failures > 0 {
		p.Log.Info("it works now", "what", what, "failures", failures, "after", time.Since(start).Round(time.Millisecond))
	}
	return nil
}
