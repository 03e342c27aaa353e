package natsbus

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// OrderedOptions bound an ordered publisher.
type OrderedOptions struct {
	// Limit is how far Send may be ahead of Acked, over all keys; default 1,000.
	Limit int
	// AckTimeout is how long one try waits for its acknowledgement; default 5 s.
	AckTimeout time.Duration
	// OnReject, if not nil, gets a message that the server can never store (too large), from the goroutine of the
	// publisher; it counts as done.
	OnReject func(Msg, error)
}

// Ordered publishes to streams so that the messages of one key are stored in the order of Send: each is sent only when
// the one before it is acknowledged. Keys do not wait for each other. A message is sent until it is stored, however long
// NATS is away; give each an ID, so that a repeat is dropped.
type Ordered struct {
	bus    *Bus
	sender *sender
	opts   OrderedOptions
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	slots chan struct{}   // one for each message above acked
	ready chan *orderItem // heads of keys, to be sent; never full: it has room for every slot
	acks  chan orderAck   // answers; never full either

	mu    sync.Mutex
	sent  uint64                // messages taken by Send
	acked uint64                // all messages up to this one are done
	done  map[uint64]bool       // done out of turn, above acked
	keys  map[string]*orderItem // the newest message of each key that has one
	moved chan struct{}         // closed and replaced when acked grows
}

type orderItem struct {
	key    string
	number uint64
	msg    Msg
	tries  int
	next   *orderItem // of the same key
}

type orderAck struct {
	item *orderItem
	err  error
}

// Ordered makes an ordered publisher. Close it before the bus.
func (b *Bus) Ordered(opts OrderedOptions) (*Ordered, error) {
	opts.Limit = cmp.Or(opts.Limit, 1000)
	opts.AckTimeout = cmp.Or(opts.AckTimeout, 5*time.Second)
	sender, err := b.newSender(opts.Limit, opts.AckTimeout)
	if err != nil {
		return nil, err
	}
	o := &Ordered{
		bus: b, sender: sender, opts: opts,
		slots: make(chan struct{}, opts.Limit), ready: make(chan *orderItem, opts.Limit), acks: make(chan orderAck, opts.Limit),
		done: make(map[uint64]bool), keys: make(map[string]*orderItem), moved: make(chan struct{}),
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.wg.Go(o.send)
	o.wg.Go(o.settle)
	return o, nil
}

// Send queues a message behind the others of its key and returns its number: 1, 2, 3, ... in the order of the calls. It
// waits while that would be more than Limit ahead of Acked, until ctx ends.
func (o *Ordered) Send(ctx context.Context, key string, m Msg) (uint64, error) {
	if o.ctx.Err() != nil {
		return 0, ErrClosed
	}
	select {
	case o.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-o.ctx.Done():
		return 0, ErrClosed
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent++
	item := &orderItem{key: key, number: o.sent, msg: m}
	last := o.keys[key]
	o.keys[key] = item
	if last != nil {
		last.next = item
	} else {
		o.ready <- item
	}
	return item.number, nil
}

// Acked returns the number up to which every message is stored (or rejected for good).
func (o *Ordered) Acked() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.acked
}

// Wait returns when every message up to number is done, or with the error of ctx, or ErrClosed.
func (o *Ordered) Wait(ctx context.Context, number uint64) error {
	for {
		o.mu.Lock()
		acked, moved := o.acked, o.moved
		o.mu.Unlock()
		if acked >= number {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-o.ctx.Done():
			return ErrClosed
		}
	}
}

// Close gives up what is not done; messages on their way may still be stored. Use Wait before, to get everything out.
func (o *Ordered) Close() {
	o.cancel()
	o.wg.Wait()
	o.sender.close()
}

// send publishes the heads of the keys.
func (o *Ordered) send() {
	for {
		select {
		case <-o.ctx.Done():
			return
		case item := <-o.ready:
			if !o.bus.awaitConnection(o.ctx) {
				return
			}
			o.sender.send(o.ctx, item.msg, func(err error) { o.acks <- orderAck{item, err} })
		}
	}
}

// settle takes the answers: the next of the key follows, or the same again after a pause.
func (o *Ordered) settle() {
	for {
		var ack orderAck
		select {
		case <-o.ctx.Done():
			return
		case ack = <-o.acks:
		}
		result, err := classify(ack.err)
		if result == unknown || result == refused && !final(err) {
			o.retry(ack.item, err)
			continue
		}
		if result == refused {
			o.bus.metrics.published.WithLabelValues("refused").Inc()
			o.bus.log.Error("message can never be published, left out", slog.String("subject", ack.item.msg.Subject), slog.String("msg_id", ack.item.msg.ID), slog.Any("err", err))
			if o.opts.OnReject != nil {
				o.opts.OnReject(ack.item.msg, err)
			}
		}
		o.finish(ack.item)
	}
}

func (o *Ordered) retry(item *orderItem, err error) {
	o.bus.noteMissing(err)
	o.bus.metrics.retries.Inc()
	item.tries++
	if item.tries == 10 {
		o.bus.log.Warn("message cannot be published, trying on", slog.String("subject", item.msg.Subject), slog.String("msg_id", item.msg.ID), slog.Any("err", err))
	}
	time.AfterFunc(delay(item.tries, retryFirst, retryMost), func() { o.ready <- item })
}

func (o *Ordered) finish(item *orderItem) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item.next != nil {
		o.ready <- item.next
	} else {
		delete(o.keys, item.key)
	}
	o.done[item.number] = true
	if !o.done[o.acked+1] {
		return
	}
	for o.done[o.acked+1] {
		o.acked++
		delete(o.done, o.acked)
		<-o.slots // only now, so that one key which is stuck cannot let the others run ahead without bound
	}
	close(o.moved)
	o.moved = make(chan struct{})
}

// PublishOrdered is Send and Wait for a batch: it returns nil when every message is stored, in the order given for each
// key. After an error (of ctx, or ErrClosed) the rest goes on being published, unless the publisher is closed.
func (o *Ordered) PublishOrdered(ctx context.Context, keys []string, msgs []Msg) error {
	var last uint64
	for i, m := range msgs {
		var err error
		if last, err = o.Send(ctx, keys[i], m); err != nil {
			return fmt.Errorf("publish in order: %w", err)
		}
	}
	if err := o.Wait(ctx, last); err != nil {
		return fmt.Errorf("publish in order: %w", err)
	}
	return nil
}
