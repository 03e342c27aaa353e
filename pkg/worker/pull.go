package worker

import (
	"context"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// A lane is either known to be empty, and then the server holds a request of ours for its next signal, or it may hold
// signals, and then it is fetched from without waiting, in order of urgency. So a lone task arrives at once however many
// lanes there are, a backlog comes in order, and a lane without work costs nothing.

const (
	// share is what a less urgent lane is granted of all that is fetched while it has work.
	share = 0.1
	// maxCredit bounds what a lane may save up, so that a long wait is not followed by a flood.
	maxCredit = 16

	// maxListen is how many signals of an empty lane are asked for at a time.
	maxListen = 8

	fetchRetryFirst = 250 * time.Millisecond
	fetchRetryMost  = 5 * time.Second
)

// lane is one lane of one task type.
type lane struct {
	kind    *kind
	rank    int // place in task.Lanes: 0 is the most urgent
	subject string
	source  laneSource
	drained bell // the lane was found empty: listen

	// The rest belongs to the puller's fetch loop, except active, which is guarded by its lock.
	active   bool
	perMsg   int // ids that the last signal carried; when that is not known, the most it can be
	failures int // in a row
	retryAt  time.Time
}

// puller receives signals for all lanes.
type puller struct {
	intake  *intake
	log     *quietLog
	metrics *metrics
	breaker *gobreaker.CircuitBreaker[[]events.Message]
	lanes   []*lane
	credit  []float64 // by rank: what less urgent lanes have a right to

	mu   sync.Mutex
	turn int // where the search among the lanes of one rank begins
}

func newPuller(q *intake, kinds []*kind, channel string, b bus, log *quietLog, m *metrics) *puller {
	p := &puller{intake: q, log: log, metrics: m, credit: make([]float64, len(task.Lanes)),
		breaker: gobreaker.NewCircuitBreaker[[]events.Message](gobreaker.Settings{
			Name: "fetch", Timeout: time.Second,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 5 },
		})}
	for rank, name := range task.Lanes {
		for _, k := range kinds {
			p.lanes = append(p.lanes, &lane{kind: k, rank: rank, subject: events.SubjectWork(k.name, channel, string(name)),
				source: b.Lane(k.name, channel, string(name)), drained: newBell(), active: true, perMsg: events.MaxSignalTasks})
		}
	}
	return p
}

// run receives until ctx ends, then closes the lanes.
func (p *puller) run(ctx context.Context) {
	var loops sync.WaitGroup
	for _, l := range p.lanes {
		loops.Go(func() { p.listen(ctx, l) })
	}
	p.fetch(ctx)
	loops.Wait()
	for _, l := range p.lanes {
		loops.Go(l.source.Close) // each waits for its own goroutine
	}
	loops.Wait()
}

// listen waits for the next signal of a lane while it is empty.
func (p *puller) listen(ctx context.Context, l *lane) {
	for {
		select {
		case <-l.drained:
			l.source.Listen(min(max(1, p.intake.room(l.kind)), maxListen))
		case msg := <-l.source.Arrivals():
			p.metrics.signals.WithLabelValues(string(task.Lanes[l.rank])).Inc()
			p.intake.offer(l.kind, l.subject, msg)
			if !l.source.Asking() {
				p.activate(l) // there may be more behind it
			}
		case <-ctx.Done():
			return
		}
	}
}

func (p *puller) activate(l *lane) {
	p.mu.Lock()
	l.active = true
	p.mu.Unlock()
	p.intake.fetches.ring()
}

// fetch empties the lanes that may hold signals, as far as there is room.
func (p *puller) fetch(ctx context.Context) {
	retry := idleTimer()
	defer retry.Stop()
	for ctx.Err() == nil {
		l, n, again := p.next(time.Now())
		if l != nil {
			p.fetchFrom(ctx, l, n)
			continue
		}
		if again > 0 {
			retry.Reset(again)
		}
		select {
		case <-p.intake.fetches:
		case <-retry.C:
		case <-ctx.Done():
		}
	}
}

func (p *puller) fetchFrom(ctx context.Context, l *lane, n int) {
	messages := max(1, n/l.perMsg)
	got, err := p.breaker.Execute(func() ([]events.Message, error) {
		got, err := l.source.FetchNoWait(ctx, messages)
		if ctx.Err() != nil {
			err = nil // our own end is no failure of NATS
		}
		return got, err
	})
	ids := 0
	for _, m := range got {
		l.perMsg = p.intake.offer(l.kind, l.subject, m)
		ids += l.perMsg
	}
	p.metrics.signals.WithLabelValues(string(task.Lanes[l.rank])).Add(float64(len(got)))
	p.grant(l.rank, ids)
	if err != nil {
		l.failures++
		l.retryAt = time.Now().Add(backoff(l.failures, fetchRetryFirst, fetchRetryMost))
		p.log.warn("signals cannot be fetched, trying on", "subject", l.subject, "err", err)
		return
	}
	l.failures = 0
	if len(got) < messages {
		l.perMsg = events.MaxSignalTasks
		p.mu.Lock()
		l.active = false
		p.mu.Unlock()
		l.drained.ring()
	}
}

// next chooses a lane with work and room, and how many ids to fetch from it. The most urgent lane comes first, except that
// a less urgent one with work gets a share of what was granted to others. Without one, again says when a failed lane may be
// tried again; zero: when something changes.
func (p *puller) next(now time.Time) (l *lane, n int, again time.Duration) {
	ready := make([][]*lane, len(task.Lanes))
	work := make([]bool, len(task.Lanes))
	p.mu.Lock()
	for _, l := range p.lanes {
		if !l.active {
			continue
		}
		work[l.rank] = true
		if p.intake.room(l.kind) < 1 {
			continue
		}
		if wait := l.retryAt.Sub(now); wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		ready[l.rank] = append(ready[l.rank], l)
	}
	p.turn++
	turn := p.turn
	p.mu.Unlock()

	rank, lower := -1, 0
	for r, lanes := range ready {
		if !work[r] {
			p.credit[r] = 0 // nothing to save up for
		}
		switch {
		case len(lanes) == 0:
		case rank < 0:
			rank = r
		case p.credit[r] >= 1:
			chosen := lanes[turn%len(lanes)]
			return chosen, min(int(p.credit[r]), p.intake.room(chosen.kind)), again
		default:
			lower++
		}
	}
	if rank < 0 {
		return nil, 0, again
	}
	lanes := ready[rank]
	chosen := lanes[turn%len(lanes)]
	n = p.intake.room(chosen.kind)
	n = (n + len(lanes) - 1) / len(lanes)
	return chosen, max(1, n-int(share*float64(n*lower))), again
}

// grant counts ids that were fetched from a rank, of which less urgent ranks get their share in turn.
func (p *puller) grant(rank, ids int) {
	p.credit[rank] = max(0, p.credit[rank]-float64(ids))
	for r := rank + 1; r < len(p.credit); r++ {
		p.credit[r] = min(maxCredit, p.credit[r]+share*float64(ids))
	}
}
