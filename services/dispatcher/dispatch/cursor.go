package dispatch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	saveEvery  = time.Second
	saveEvents = 500 // or after so many changes, but not more often than minSave
	minSave    = 250 * time.Millisecond
	saveIdle   = 30 * time.Second // when only the idle place has moved
)

// saver keeps the place up to which the change stream was handled: every signal before it was acknowledged or refused.
type saver struct {
	outbox *outbox
	store  Streams
	epoch  int64
	log    *slog.Logger
}

func (s *saver) run(ctx context.Context) error {
	ticker := time.NewTicker(minSave)
	defer ticker.Stop()
	saved, savedAt := mark{}, time.Now()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		place := s.outbox.place()
		if !due(saved, place, time.Since(savedAt)) {
			continue
		}
		saving, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := s.store.SaveCursor(saving, CursorName, place.token, place.at, s.epoch)
		cancel()
		switch {
		case err == nil:
			saved, failing = place, false
		case errors.Is(err, task.ErrNotLeader):
			return err
		case ctx.Err() == nil && !failing:
			s.log.Warn("cannot save the cursor", "err", err)
			failing = true
		}
		savedAt = time.Now()
	}
}

// due reports whether a place is worth saving, given how long ago the last was saved.
func due(saved, place mark, since time.Duration) bool {
	if place.token == nil || bytes.Equal(saved.token, place.token) {
		return false
	}
	switch news := place.events - saved.events; {
	case news >= saveEvents:
		return true
	case news > 0, saved.token == nil: // the first place of a term tells how far the term before was left
		return since >= saveEvery
	default:
		return since >= saveIdle
	}
}
