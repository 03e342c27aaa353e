package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	publishLimit   = 2_048 // signals in one publish
	publishTimeout = 5 * time.Second
)

// outbox sends signals in the order in which they were decided. What gathers while a publish is under way goes out in the
// next one: at low load each signal leaves at once, under load they share round trips. Its length is bounded by the lanes'
// depths.
type outbox struct {
	bus   Bus
	epoch int64
	done  func([]signal, []error)

	mu      sync.Mutex
	signals []signal
	added   uint64 // signals ever added
	sent    uint64 // signals ever acknowledged, refused or failed
	kick    chan struct{}
	marks   []mark
	reached mark
}

// mark is a place in the change stream, reached once all signals added before it have been answered for.
type mark struct {
	token  []byte
	at     time.Time // of the newest change before it; zero: everything until now is before it
	events int       // changes handled since the term began
	after  uint64
}

func newOutbox(bus Bus, epoch int64) *outbox {
	return &outbox{bus: bus, epoch: epoch, kick: make(chan struct{}, 1)}
}

func (o *outbox) add(signals []signal) {
	o.mu.Lock()
	o.signals = append(o.signals, signals...)
	o.added += uint64(len(signals))
	o.mu.Unlock()
	poke(o.kick)
}

// mark notes a place in the stream behind all that was added.
func (o *outbox) mark(m mark) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m.after = o.added
	switch {
	case o.sent >= o.added:
		o.reached, o.marks = m, nil
	case len(o.marks) > 0 && o.marks[len(o.marks)-1].after == m.after:
		o.marks[len(o.marks)-1] = m
	default:
		o.marks = append(o.marks, m)
	}
}

// place is the last mark reached.
func (o *outbox) place() mark {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reached
}

func (o *outbox) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.kick:
		}
		for batch := o.take(); len(batch) > 0 && ctx.Err() == nil; batch = o.take() {
			o.publish(ctx, batch)
		}
	}
}

func (o *outbox) publish(ctx context.Context, batch []signal) {
	msgs := make([]events.Msg, len(batch))
	for i := range batch {
		msgs[i] = batch[i].message(o.epoch)
	}
	publishing, cancel := context.WithTimeout(ctx, publishTimeout)
	errs := o.bus.Publish(publishing, msgs)
	cancel()
	if ctx.Err() != nil {
		return // the term is over: nobody asks any more
	}
	o.done(batch, errs)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent += uint64(len(batch))
	n := 0
	for n < len(o.marks) && o.marks[n].after <= o.sent {
		o.reached = o.marks[n]
		n++
	}
	o.marks = o.marks[n:]
}

func (o *outbox) take() []signal {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(o.signals), publishLimit)
	batch := o.signals[:n:n]
	o.signals = o.signals[n:]
	if len(o.signals) == 0 {
		o.signals = nil
	}
	return batch
}
