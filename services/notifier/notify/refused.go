package notify

import (
	"encoding/json"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/ax-scheduler/ax/pkg/events"
)

// rememberedRefusals bounds how many refusals are known again when they are delivered once more.
const rememberedRefusals = 10_000

// Refusals handles what ends in AX_DEAD: each refused submission is counted by its code and said in the log, so that a
// publisher who gets no answers is not refused in silence.
type Refusals struct {
	n *Notifier

	mu   sync.Mutex
	seen *published
}

// Refusals makes the handler. It needs no leader: any instance may get any message.
func (n *Notifier) Refusals() *Refusals {
	return &Refusals{n: n, seen: newPublished(rememberedRefusals)}
}

// Handle takes one message of ax.dead.submit. It is idempotent, and accepts what cannot be read: nothing would change that.
func (r *Refusals) Handle(msg *message.Message) error {
	if r.again(msg.UUID) {
		return nil
	}
	var dead events.DeadSubmit
	if err := json.Unmarshal(msg.Payload, &dead); err != nil || dead.Error.Code == "" {
		dead.Error.Code = "unreadable"
	}
	r.n.metrics.refused.WithLabelValues(known(dead.Error.Code)).Inc()
	r.n.log.Warn("a submission was refused", "subject", dead.Subject, "sequence", dead.Sequence, "code", dead.Error.Code,
		"field", dead.Error.Field, "err", dead.Error.Message)
	return nil
}

// again notes a message and tells whether it had been handled.
func (r *Refusals) again(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen.last(id) > 0 {
		return true
	}
	r.seen.mark(id, 1)
	return false
}

// known keeps the values of a label few, whatever is published.
func known(code string) string {
	switch code {
	case events.CodeInvalid, events.CodeIDConflict, events.CodeNotFound, events.CodeFinished, events.CodeTooLarge,
		events.CodeUnsupported, events.CodeUnavailable, events.CodeInternal, "unreadable":
		return code
	}
	return "other"
}
