package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	// maxClaim bounds the ids of one claim.
	maxClaim = 256
	// maxOpenClaims is how many claims may be without an answer before no more are made.
	maxOpenClaims = 8
	// resolveTimeout bounds one look for what a claim of unknown outcome holds.
	resolveTimeout = 2 * time.Second

	claimRetryFirst = 100 * time.Millisecond
	claimRetryMost  = 2 * time.Second
)

// openClaim is a claim whose outcome is unknown: its write may still land.
type openClaim struct {
	token string
	ids   []string
	sent  time.Time
	asked bool // the database has answered since, so it can be reached
}

// claimer turns wants into executions. It is the only one in the process that claims.
type claimer struct {
	store   store
	intake  *intake
	worker  string
	lease   time.Duration
	log     *quietLog
	metrics *metrics
	// fit tells whether a task that was won for a kind may be run; others are handed back.
	fit func(t *task.Task, wanted *kind, sent time.Time) bool
	// start runs tasks that were won by a claim sent at the given time.
	start func(tasks []*task.Task, sent time.Time)
	// give passes signals on that wait too long for a slot. It does not block.
	give func(ctx context.Context, now time.Time)
	// handBack releases tasks that are not run.
	handBack func(tasks []*task.Task, sent time.Time)

	mu       sync.Mutex
	pace     pace
	failures int       // in a row
	retryAt  time.Time // no claim before, after a failure
	open     []openClaim
	claims   sync.WaitGroup
}

// run claims until fetching ends; claims under way are bounded by working.
func (c *claimer) run(fetching, working context.Context) {
	timer := idleTimer()
	defer timer.Stop()
	for {
		now := time.Now()
		c.give(working, now)
		c.intake.extend(now)
		timer.Reset(c.step(working, now))
		select {
		case <-c.intake.claims:
		case <-timer.C:
		case <-fetching.Done():
			return
		}
	}
}

// step sends what may be sent and tells when to look again at the latest.
func (c *claimer) step(working context.Context, now time.Time) time.Duration {
	wait := extendEvery / 2
	if c.intake.waits() {
		wait = holdBusy / 2
	}
	sooner := func(d time.Duration) {
		if d > 0 && d < wait {
			wait = d
		}
	}
	for {
		n, more, next := c.intake.claimable(now)
		if !next.IsZero() {
			sooner(max(next.Sub(now), time.Millisecond))
		}
		c.mu.Lock()
		ok, again := c.pace.allows(n, more, now)
		if ok && (now.Before(c.retryAt) || c.unasked() >= maxOpenClaims) {
			ok = false
			sooner(c.retryAt.Sub(now))
		}
		c.mu.Unlock()
		sooner(again)
		if !ok {
			return wait
		}
		batch := c.intake.take(maxClaim)
		if len(batch) == 0 {
			return wait
		}
		sent := time.Now()
		c.mu.Lock()
		c.pace.start(sent)
		c.mu.Unlock()
		c.claims.Go(func() { c.claim(working, batch, sent) })
	}
}

// unasked is how many claims are open since the database was last reached. The caller holds mu.
func (c *claimer) unasked() int {
	n := 0
	for _, o := range c.open {
		if !o.asked {
			n++
		}
	}
	return n
}

func (c *claimer) claim(working context.Context, batch []*want, sent time.Time) {
	ids := make([]string, len(batch))
	for i, w := range batch {
		ids[i] = w.ID
	}
	request := task.ClaimRequest{IDs: ids, Claim: uuid.NewString(), Worker: c.worker, Lease: c.lease}
	ctx, cancel := context.WithTimeout(working, c.lease/3)
	defer cancel()
	tasks, err := c.store.Claim(ctx, request)
	c.metrics.claimSeconds.Observe(time.Since(sent).Seconds())

	sure := err == nil
	if err != nil && !errors.Is(err, task.ErrClock) { // without server time nothing was sent; else the write may have landed
		c.metrics.claimsUnknown.Inc()
		tasks = c.resolveAtOnce(working, request, sent)
	}
	c.mu.Lock()
	c.pace.end(sent, time.Now())
	if err == nil {
		c.failures = 0
	} else {
		c.failures++
		c.retryAt = time.Now().Add(backoff(c.failures, claimRetryFirst, claimRetryMost))
		if working.Err() == nil {
			c.log.warn("claim failed, trying on", "err", err)
		}
	}
	c.mu.Unlock()

	kinds := make(map[string]*kind, len(batch))
	for _, w := range batch {
		kinds[w.ID] = w.kind
	}
	var run, back []*task.Task
	decided := make(map[string]bool, len(tasks)) // true: it is run
	for _, t := range tasks {
		decided[t.ID] = c.fit(t, kinds[t.ID], sent)
		if decided[t.ID] {
			run = append(run, t)
		} else {
			back = append(back, t)
		}
	}
	c.metrics.claimed.WithLabelValues("won").Add(float64(len(tasks)))
	c.metrics.claimed.WithLabelValues("lost").Add(float64(len(batch) - len(tasks)))
	c.intake.claimed(batch, decided, sure)
	c.start(run, sent)
	c.handBack(back, sent)
}

// resolveAtOnce asks what a claim without an answer holds. Whatever is not there yet may still turn up, so the claim stays
// open for one lease.
func (c *claimer) resolveAtOnce(ctx context.Context, r task.ClaimRequest, sent time.Time) []*task.Task {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	tasks, err := c.store.Resolve(ctx, r.Claim, r.IDs)
	if missing := without(r.IDs, tasks); len(missing) > 0 {
		c.mu.Lock()
		c.open = append(c.open, openClaim{token: r.Claim, ids: missing, sent: sent, asked: err == nil})
		c.mu.Unlock()
	}
	return tasks
}

// resolve looks for what open claims hold by now, at each beat for one lease: it came too late to be run, so it is handed
// back. After a lease the reaper finds it.
func (c *claimer) resolve(ctx context.Context) {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	var still []openClaim
	for _, o := range open {
		tasks, err := c.store.Resolve(ctx, o.token, o.ids)
		o.asked = o.asked || err == nil
		if len(tasks) > 0 {
			c.log.log.Info("a claim without an answer took place, its tasks are handed back", "count", len(tasks))
			c.handBack(tasks, o.sent)
		}
		if o.ids = without(o.ids, tasks); len(o.ids) > 0 && time.Since(o.sent) < c.lease {
			still = append(still, o)
		}
	}
	c.mu.Lock()
	c.open = append(still, c.open...)
	c.mu.Unlock()
	c.intake.claims.ring()
}

// without returns the ids that are none of the tasks'.
func without(ids []string, tasks []*task.Task) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		return slices.ContainsFunc(tasks, func(t *task.Task) bool { return t.ID == id })
	})
}
