package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	// CursorName is the document that keeps the dispatcher's place in the change stream.
	CursorName = "dispatcher"

	// staleCursor is how old a saved place may be to be worth continuing from. A new leader walks all that is due in any
	// case, so that a long replay of changes would only delay the newest.
	staleCursor   = time.Minute
	silentStream  = time.Minute // a stream whose place does not move for so long is opened again
	retryNoStream = time.Minute // a server without change streams is asked again after this
	openTimeout   = 2 * time.Minute
	hopeless      = 5 // failures in a row after which a place is given up: it may be what the server cannot stomach
)

// tailer follows the change stream and feeds the board with it.
type tailer struct {
	board   *board
	outbox  *outbox
	store   Streams
	clock   Clock
	epoch   int64
	metrics *Metrics
	log     *slog.Logger
	mode    *mode
	rescan  chan<- struct{} // asks for a walk

	token  []byte
	events int
}

func (t *tailer) run(ctx context.Context) error {
	if err := t.resume(ctx); err != nil {
		return err
	}
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := t.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > lastPause {
			failures = 0
		}
		wait := backoff(failures)
		failures++
		switch {
		case errors.Is(err, task.ErrNoChangeStream):
			t.mode.set(false, "the database has no change streams")
			wait = retryNoStream + rand.N(retryNoStream/4)
		case errors.Is(err, task.ErrHistoryLost):
			if err := t.drop(ctx, err); err != nil {
				return err
			}
			if failures == 1 {
				wait = 0
			}
		default:
			t.mode.set(false, err.Error())
			if t.token != nil && failures == hopeless {
				if err := t.drop(ctx, err); err != nil {
					return err
				}
			}
		}
		sleep(ctx, wait)
	}
	return nil
}

// resume loads the saved place, if it is fresh enough to be of use.
func (t *tailer) resume(ctx context.Context) error {
	token, at, err := t.store.LoadCursor(ctx, CursorName)
	if err != nil {
		return fmt.Errorf("load cursor: %w", err)
	}
	now, _, err := t.clock.Now()
	if err == nil && now.Sub(at) < staleCursor {
		t.token = token
	}
	return nil
}

// drop forgets the place, here and in the store, and what was known of ids in flight: the changes between are lost.
func (t *tailer) drop(ctx context.Context, why error) error {
	t.log.Warn("change stream history lost: everything due is looked at again", "err", why)
	t.metrics.historyLost.Inc()
	t.token = nil
	t.board.forget(true)
	if err := t.store.SaveCursor(ctx, CursorName, nil, time.Time{}, t.epoch); err != nil {
		if errors.Is(err, task.ErrNotLeader) {
			return err
		}
		t.log.Warn("cannot drop the cursor", "err", err)
	}
	return nil
}

// follow opens the stream and handles what it brings until it fails. What is due already is scanned only once the stream
// is open, so that nothing can fall between the two; the scan goes on beside the tail.
func (t *tailer) follow(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	stream, err := t.store.OpenStream(opening, t.token)
	cancel()
	if err != nil {
		return fmt.Errorf("open change stream: %w", err)
	}
	defer stream.Close()
	t.mode.set(true, "")
	poke(t.rescan)
	moved := time.Now()
	for {
		batch, err := stream.Next(ctx)
		if err != nil {
			return fmt.Errorf("read change stream: %w", err)
		}
		if len(batch) > 0 {
			t.board.observe(batch)
			t.events += len(batch)
			t.measure(batch)
		}
		if token := stream.Token(); string(token) != string(t.token) {
			t.token, moved = token, time.Now()
			place := mark{token: token, events: t.events}
			if len(batch) > 0 {
				place.at = batch[len(batch)-1].Change.At
			}
			t.outbox.mark(place)
		} else if time.Since(moved) > silentStream {
			return errSilent
		}
	}
}

var errSilent = errors.New("the change stream has been silent for a minute, idle tokens included")

func (t *tailer) measure(batch []task.Observed) {
	t.metrics.changes.Add(float64(len(batch)))
	if now, _, err := t.clock.Now(); err == nil {
		t.metrics.lag.Set(max(0, now.Sub(batch[len(batch)-1].Change.At)).Seconds())
	}
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
