package submit

import (
	"context"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/pkg/events"
)

// held is a message between its delivery and its end. It is settled once: acknowledged or given back.
type held struct {
	events.Message
	renewed time.Time // when the server last heard of it; monotonic
}

// holder keeps the server from delivering again what is in hand, however long the database takes. Without it a slow database
// would see everything twice.
type holder struct {
	ackWait time.Duration

	mu   sync.Mutex
	held map[*held]struct{}
}

func newHolder(ackWait time.Duration) *holder {
	return &holder{ackWait: ackWait, held: map[*held]struct{}{}}
}

func (h *holder) add(msgs []events.Message) []*held {
	now := time.Now()
	all := make([]*held, len(msgs))
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, m := range msgs {
		all[i] = &held{Message: m, renewed: now}
		h.held[all[i]] = struct{}{}
	}
	return all
}

// ack and giveBack end the hold. When the connection is down their message is lost, and the submission delivered again.
func (h *holder) ack(m *held) {
	h.drop(m)
	_ = m.Ack()
}

func (h *holder) giveBack(m *held, after time.Duration) {
	h.drop(m)
	_ = m.NakWithDelay(max(after, leaving))
}

// leaving is what the server gets to notice that this process asks for no more, before it delivers to another.
const leaving = 100 * time.Millisecond

func (h *holder) drop(m *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, m)
}

func (h *holder) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held)
}

// run renews what has been held for a third of the server's patience, until ctx ends.
func (h *holder) run(ctx context.Context) {
	tick := time.NewTicker(h.ackWait / 6)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.renew(time.Now())
		}
	}
}

func (h *holder) renew(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.held {
		if now.Sub(m.renewed) >= h.ackWait/3 {
			m.renewed = now
			_ = m.InProgress()
		}
	}
}
