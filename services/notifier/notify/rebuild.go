package notify

import (
	"context"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	// rebuildPage is how many finished tasks are read at once; each may have up to task.MaxHistory changes.
	rebuildPage = 200
	// rebuildBatch is how many events are published before acknowledgements are waited for.
	rebuildBatch = 1000
	// finishedWindow is the stretch of time read at once at first. It shrinks where many tasks finished.
	finishedWindow = time.Minute
)

// rebuildOnce publishes again what may not have been published, and stores the place of the stream opened before.
func (n *Notifier) rebuildOnce(ctx context.Context, epoch int64, p place, stream Stream) error {
	n.log.Info("publishing again from history", "because", p.rebuild, "since", p.since())
	n.metrics.rebuilds.WithLabelValues(p.rebuild).Inc()
	n.metrics.rebuilding.Set(1)
	defer n.metrics.rebuilding.Set(0)
	if err := n.rebuild(ctx, p.since(), newPublished(rememberedTasks)); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	n.setKnown(p.creation)
	if token := stream.Token(); token != nil {
		return n.save(ctx, epoch, token, p.began)
	}
	return nil // an idle stream tells its place with the first reading
}

// rebuild publishes the history of all live tasks and of those finished since from, and writes dead letters. Live ones are
// read first: one that ends meanwhile is found among the finished, or it had been read.
func (n *Notifier) rebuild(ctx context.Context, from time.Time, done *published) error {
	err := n.store.EachLive(ctx, func(tasks []*task.Task) error { return n.replay(ctx, tasks, done) })
	if err != nil {
		return err
	}
	now, bound, err := n.store.Now()
	if err != nil {
		return err
	}
	return n.eachFinished(ctx, from, now.Add(bound), func(tasks []*task.Task) error { return n.replay(ctx, tasks, done) })
}

// eachFinished reads finished tasks window by window, so that no read grows with what there is.
func (n *Notifier) eachFinished(ctx context.Context, from, to time.Time, do func([]*task.Task) error) error {
	window := finishedWindow
	limit := rebuildPage
	for from.Before(to) {
		until := from.Add(window)
		if until.After(to) {
			until = to
		}
		tasks, err := n.store.FinishedBetween(ctx, from, until, limit)
		if err != nil {
			return fmt.Errorf("read finished tasks: %w", err)
		}
		if len(tasks) == limit { // there may be more in this window
			if window > time.Millisecond {
				window = max(window/4, time.Millisecond)
			} else {
				limit *= 2 // times are whole milliseconds: the window cannot be cut further
			}
			continue
		}
		if err := do(tasks); err != nil {
			return err
		}
		from, limit = until, rebuildPage
		if len(tasks) < rebuildPage/8 {
			window = min(window*2, time.Hour)
		}
	}
	return nil
}

// replay publishes the kept history of tasks, announces what is no longer kept, and writes dead letters.
func (n *Notifier) replay(ctx context.Context, tasks []*task.Task, done *published) error {
	var msgs []events.Msg
	var dead []task.DeadTask
	flush := func() error {
		err := n.bus.PublishInOrder(ctx, msgs)
		msgs = msgs[:0]
		if err != nil {
			return fmt.Errorf("publish events: %w", err)
		}
		return nil
	}
	for _, t := range tasks {
		last := done.last(t.ID)
		if last >= t.Seq {
			continue
		}
		kept, missing := history(t)
		if missing > last {
			n.metrics.gaps.Inc()
			msg, err := gapMessage(t.ID, last+1, missing, kept[0].Change)
			if err != nil {
				return err
			}
			msgs = append(msgs, msg)
		}
		for _, o := range kept {
			if o.Change.Seq <= last {
				continue
			}
			msgs = n.append(msgs, o)
		}
		if d, ok := deadTask(t); ok {
			dead = append(dead, d)
		}
		if len(msgs) >= rebuildBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	if err := n.writeDead(ctx, dead); err != nil {
		return err
	}
	for _, t := range tasks {
		done.mark(t.ID, t.Seq)
	}
	return nil
}
