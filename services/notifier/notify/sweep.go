package notify

import (
	"context"
)

// sweep publishes from history alone, again and again: the mode for a database without change streams. It finds every
// change, later than the stream would and at a cost that grows with the tasks that are alive.
func (n *Notifier) sweep(ctx context.Context, epoch int64, p place) error {
	n.log.Warn("the database has no change streams; events are found by sweeps and come late")
	n.metrics.degraded.Set(1)
	done := newPublished(rememberedTasks)
	for {
		if err := n.rebuild(ctx, p.since(), done); err != nil {
			return err
		}
		n.setKnown(p.creation)
		if err := n.save(ctx, epoch, nil, p.began); err != nil {
			return err
		}
		n.lag(p.began)
		if !pause(ctx, n.cfg.SweepEvery) {
			return nil
		}
		next, err := n.start(ctx)
		if err != nil {
			return err
		}
		if next.creation != p.creation {
			return errAgain
		}
		p = next
	}
}

// rememberedTasks bounds what sweeps know of each other; a task that was forgotten is published again, with the same
// message ids.
const rememberedTasks = 100_000

// published remembers how far tasks have been published, in two generations of bounded size.
type published struct {
	limit      int
	young, old map[string]int64
}

func newPublished(limit int) *published {
	return &published{limit: limit / 2, young: make(map[string]int64)}
}

func (p *published) last(id string) int64 { return max(p.young[id], p.old[id]) }

func (p *published) mark(id string, seq int64) {
	if len(p.young) >= p.limit {
		p.old, p.young = p.young, make(map[string]int64)
	}
	p.young[id] = seq
}
