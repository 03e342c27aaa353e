package worker

import (
	"log/slog"
	"sync"
	"time"
)

// quiet is how long one message is not repeated.
const quiet = 30 * time.Second

// quietLog writes each message at most once in a while: what goes wrong in a loop goes wrong many times.
type quietLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time // by message; the messages are constants, so it stays small
}

func newQuietLog(log *slog.Logger) *quietLog {
	return &quietLog{log: log, last: make(map[string]time.Time)}
}

func (q *quietLog) warn(message string, args ...any) {
	q.mu.Lock()
	now := time.Now()
	last, said := q.last[message]
	silent := said && now.Sub(last) < quiet
	if !silent {
		q.last[message] = now
	}
	q.mu.Unlock()
	if !silent {
		q.log.Warn(message, args...)
	}
}
