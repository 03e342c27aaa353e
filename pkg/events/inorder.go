package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// delivery is one event on its way through a subscription.
type delivery struct {
	event    Event
	sequence uint64 // in the stream
	epoch    int    // which creation of the stream it came from
	msg      jetstream.Msg
	tries    int
}

// inOrder hands events to a bounded number of workers: those of one task one after the other in the order of arrival, those
// of different tasks side by side. An event whose handler fails is tried again after a pause, and the later ones of its
// task wait behind it; other tasks pass by. How many events it holds is bounded by what the server delivers unacknowledged.
type inOrder struct {
	handle func(context.Context, *delivery) error
	retry  func(tries int) time.Duration

	mu     sync.Mutex
	wake   *sync.Cond
	queues map[string][]*delivery // by task; the head is being handled or waits for its next try
	ready  []string               // tasks whose head may be handled
	closed bool
	wg     sync.WaitGroup
}

func newInOrder(ctx context.Context, workers int, retry func(int) time.Duration, handle func(context.Context, *delivery) error) *inOrder {
	o := &inOrder{handle: handle, retry: retry, queues: make(map[string][]*delivery)}
	o.wake = sync.NewCond(&o.mu)
	for range workers {
		o.wg.Go(func() { o.work(ctx) })
	}
	return o
}

func (o *inOrder) add(d *delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := d.event.ID
	o.queues[id] = append(o.queues[id], d)
	if len(o.queues[id]) == 1 {
		o.makeReady(id)
	}
}

// makeReady must be called with the lock held.
func (o *inOrder) makeReady(id string) {
	o.ready = append(o.ready, id)
	o.wake.Signal()
}

func (o *inOrder) work(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for len(o.ready) == 0 && !o.closed {
			o.wake.Wait()
		}
		if o.closed {
			return
		}
		id := o.ready[0]
		o.ready = o.ready[1:]
		head := o.queues[id][0]

		o.mu.Unlock()
		err := o.try(ctx, head)
		o.mu.Lock()

		if err != nil {
			head.tries++
			time.AfterFunc(o.retry(head.tries), func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				o.makeReady(id)
			})
			continue
		}
		if rest := o.queues[id][1:]; len(rest) > 0 {
			o.queues[id] = rest
			o.makeReady(id)
		} else {
			delete(o.queues, id)
		}
	}
}

func (o *inOrder) try(ctx context.Context, d *delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return o.handle(ctx, d)
}

// close waits for the handlers that run. What was not handled stays unacknowledged.
func (o *inOrder) close() {
	o.mu.Lock()
	o.closed = true
	o.wake.Broadcast()
	o.mu.Unlock()
	o.wg.Wait()
}

// backoff is the pause before try n+1: it doubles from first to most, and up to half of it again is added at random.
func backoff(n int, first, most time.Duration) time.Duration {
	d := min(most, first<<min(max(n-1, 0), 20))
	return d + rand.N(d/2+1)
}
