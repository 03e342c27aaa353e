package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// readAhead is how many batches of the stream are held while one is being published. A batch is at most what the database
// sends in one reply, 16 MB.
const readAhead = 2

// silentStream is how long a stream's place may stand still. It moves also while nothing happens; one that does not is open to a
// server that cannot see what a majority has written.
const silentStream = time.Minute

// A small batch is followed by a pause in which the next one gathers: each reading costs the database about as much as ten
// changes do, and each publish NATS and the subscribers. Subscribers get events that much later, so the pause grows with the rate:
// the changes of a lone task wait for 5 ms.
const (
	gatherLeast = 5 * time.Millisecond
	gatherMost  = 20 * time.Millisecond
	gatherTill  = 200 // changes a second that stretch the pause to the most
	smallBatch  = 50  // changes
)

// gatherFor is the pause after a reading of n changes that began so long after the one before it.
func gatherFor(n int, since time.Duration) time.Duration {
	if n == 0 || n >= smallBatch {
		return 0
	}
	rate := float64(n) / max(since, time.Millisecond).Seconds()
	return gatherLeast + time.Duration(min(1, rate/gatherTill)*float64(gatherMost-gatherLeast))
}

var errSilent = errors.New("the change stream has been silent for a minute, idle places included")

// batch is what one reading of the stream gave.
type batch struct {
	changes []task.Observed
	token   []byte
	at      time.Time // changes written before are in this batch or an earlier one; zero: not known
}

// tail publishes what the stream gives until ctx ends. Reading goes on while a batch is being published, so that neither
// the database nor NATS waits for the other.
func (n *Notifier) tail(ctx context.Context, epoch int64, stream Stream) error {
	ctx, stop := context.WithCancel(ctx)
	batches := make(chan batch, readAhead)
	ended := make(chan error, 1)
	go func() { ended <- n.read(ctx, stream, batches) }()

	err := n.publishAll(ctx, epoch, batches)
	stop()
	for range batches { // the reader closes it; what was read ahead and not published is read again from the cursor
	}
	readErr := <-ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, readErr)
}

// read moves the stream's changes into batches and closes it at the end.
func (n *Notifier) read(ctx context.Context, stream Stream, batches chan<- batch) error {
	defer close(batches)
	var last []byte
	moved, before := time.Now(), time.Now() // when the place moved, when the reading before this one ended
	for ctx.Err() == nil {
		var b batch
		asked, bound, clockErr := n.store.Now()
		changes, err := stream.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read the change stream: %w", err)
		}
		b.changes, b.token = changes, stream.Token()
		if !bytes.Equal(b.token, last) {
			last, moved = b.token, time.Now()
		} else if time.Since(moved) > silentStream {
			return fmt.Errorf("read the change stream: %w", errSilent)
		}
		switch {
		case len(changes) > 0:
			b.at = changes[len(changes)-1].Change.At
		case clockErr == nil:
			b.at = asked.Add(-bound)
		}
		waited := time.Now()
		select {
		case batches <- b:
		case <-ctx.Done():
			return nil
		}
		if wait := gatherFor(len(changes), waited.Sub(before)); wait > 0 {
			pause(ctx, wait)
		}
		before = waited
		moved = moved.Add(time.Since(waited)) // nothing is read while NATS is waited for
	}
	return nil
}

// publishAll publishes batch after batch and stores the place reached. It returns when batches is closed.
func (n *Notifier) publishAll(ctx context.Context, epoch int64, batches <-chan batch) error {
	var reached batch // published, not stored yet
	changed := false
	saved, checked := time.Now(), time.Now()
	defer func() {
		if reached.token != nil && changed { // a stop in order repeats nothing at the next start
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			if err := n.save(ctx, epoch, reached.token, reached.at); err != nil {
				n.log.Info("the place could not be stored; the last events will be published again", "err", err)
			}
		}
	}()
	for b := range batches {
		if time.Since(checked) >= n.cfg.CheckEvery {
			if err := n.check(ctx); err != nil {
				return err
			}
			checked = time.Now()
		}
		if err := n.publish(ctx, b.changes); err != nil {
			return err
		}
		if b.token == nil || b.at.IsZero() {
			continue
		}
		reached, changed = b, changed || len(b.changes) > 0
		n.lag(b.at)
		every := n.cfg.IdleEvery
		if changed {
			every = n.cfg.SaveEvery
		}
		if time.Since(saved) < every {
			continue
		}
		if err := n.save(ctx, epoch, reached.token, reached.at); err != nil {
			return err
		}
		saved, changed = time.Now(), false
	}
	return nil
}

// check returns errAgain when AX_EVENT is not the stream any more that the stored cursor stands for. While NATS is away
// there is nothing to compare; publishing waits for it.
func (n *Notifier) check(ctx context.Context) error {
	creation, err := n.bus.EventStream(ctx)
	if err != nil || creation == n.Note() {
		return nil
	}
	n.log.Warn("the event stream was lost and made again; events of the last hour are published again")
	return errAgain
}

// publish publishes changes and writes the dead letters they lead to. After it returned nil the cursor may move past them.
func (n *Notifier) publish(ctx context.Context, changes []task.Observed) error {
	if len(changes) == 0 {
		return nil
	}
	msgs := make([]events.Msg, 0, len(changes))
	var dead []string
	for _, o := range changes {
		msgs = n.append(msgs, o)
		if died(o.Change) {
			dead = append(dead, o.ID)
		}
	}
	if err := n.bus.PublishInOrder(ctx, msgs); err != nil {
		return fmt.Errorf("publish events: %w", err)
	}
	return n.bury(ctx, dead)
}

// append adds the event of a change. One that cannot be written, which no store of ours makes, is left out and said: it must
// not keep all others back.
func (n *Notifier) append(msgs []events.Msg, o task.Observed) []events.Msg {
	msg, err := eventOf(o)
	if err != nil {
		n.metrics.gaps.Inc()
		n.log.Error("a change cannot be published", "task_id", o.ID, "err", err)
		return msgs
	}
	n.metrics.events.WithLabelValues(string(o.Change.To)).Inc()
	return append(msgs, msg)
}

// buryParallel is how many failed tasks are read at a time.
const buryParallel = 8

// bury reads the tasks that failed and writes their dead letters. A failed task never changes again, so what is read is what
// the event told; the event itself does not tell whether a dead letter is wanted, nor of the earlier attempts.
func (n *Notifier) bury(ctx context.Context, ids []string) error {
	letters := make([]*task.DeadTask, len(ids))
	reads, reading := errgroup.WithContext(ctx)
	reads.SetLimit(buryParallel)
	for i, id := range ids {
		reads.Go(func() error {
			t, err := n.store.Get(reading, id)
			if errors.Is(err, task.ErrNotFound) {
				n.log.Warn("a failed task is gone; it leaves no dead letter", "task_id", id)
				return nil
			}
			if err != nil {
				return fmt.Errorf("read failed task: %w", err)
			}
			if d, ok := deadTask(t); ok {
				letters[i] = &d
			}
			return nil
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	var dead []task.DeadTask
	for _, d := range letters {
		if d != nil {
			dead = append(dead, *d)
		}
	}
	return n.writeDead(ctx, dead)
}

func (n *Notifier) writeDead(ctx context.Context, dead []task.DeadTask) error {
	if len(dead) == 0 {
		return nil
	}
	if err := n.store.UpsertDeadLetters(ctx, dead); err != nil {
		return fmt.Errorf("write dead letters: %w", err)
	}
	for _, d := range dead {
		n.metrics.dead.WithLabelValues(string(d.Reason)).Inc()
	}
	return nil
}

func (n *Notifier) lag(at time.Time) {
	if now, _, err := n.store.Now(); err == nil {
		n.metrics.lag.Set(max(0, now.Sub(at).Seconds()))
	}
}
