package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

const (
	// waitLook is how often a wait looks at the stored task although no event came: events may be lost, the task is not.
	waitLook = 5 * time.Second
	// lookTimeout bounds one look. A request that is lost with its connection is never answered.
	lookTimeout = 3 * time.Second
	// beginTimeout is how long a wait tries to look at its task at all.
	beginTimeout = 10 * time.Second
	beginPause   = 250 * time.Millisecond
	// unknownFor is how long an id may be unknown at the beginning: what was queued by [Client.Publish] is stored a moment later.
	unknownFor = 3 * time.Second
)

// Wait returns the task once it has ended, whatever the end; look at its State. It returns ctx's error when that ends first. When
// the task cannot be looked up within 10 s at the beginning that is an error, with code unavailable; when the system cannot be
// reached later on, Wait goes on. An id that is not known, and does not become known within 3 s as that of a queued submission does,
// is an error with code not_found; where submissions may queue for longer, ask again.
func (c *Client) Wait(ctx context.Context, id string) (events.Task, error) {
	t, err := c.firstLook(ctx, id)
	if err != nil || ended(t) {
		return t, err
	}
	told, stop, err := c.ends.listen(t.Type, id)
	if err != nil {
		return t, fmt.Errorf("wait for task %s: %w", id, err)
	}
	defer stop()
	for {
		// The first look comes after listening began, over the same connection: the server knows of that when it passes the look
		// on, so an end between the two is not missed.
		if now, err := c.look(ctx, id); err == nil {
			if t = now; ended(t) {
				return t, nil
			}
		} else if !unavailable(err) && ctx.Err() == nil {
			return t, err
		}
		timer := time.NewTimer(waitLook/2 + rand.N(waitLook))
		select {
		case <-told:
			timer.Stop()
		case <-timer.C:
		case <-c.ends.closed:
			timer.Stop()
			return t, ErrClosed
		case <-ctx.Done():
			timer.Stop()
			return t, fmt.Errorf("wait for task %s, which is %s: %w", id, t.State, context.Cause(ctx))
		}
	}
}

// firstLook waits a little for a system that is just restarting, and for a task that is just being stored.
func (c *Client) firstLook(ctx context.Context, id string) (events.Task, error) {
	begin, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	began := time.Now()
	for {
		t, err := c.look(begin, id)
		queued := err != nil && asError(err).Code == events.CodeNotFound && time.Since(began) < unknownFor
		if err == nil || !unavailable(err) && !queued && ctx.Err() == nil {
			return t, err
		}
		timer := time.NewTimer(beginPause/2 + rand.N(beginPause))
		select {
		case <-timer.C:
		case <-begin.Done():
			timer.Stop()
			if ctx.Err() != nil {
				err = fmt.Errorf("wait for task %s: %w", id, context.Cause(ctx))
			}
			return t, err
		}
	}
}

func (c *Client) look(ctx context.Context, id string) (events.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return c.Get(ctx, id)
}

func unavailable(err error) bool { return asError(err).Code == events.CodeUnavailable }

func ended(t events.Task) bool { return task.State(t.State).Terminal() }

// ends tells waiters that their task has ended. It listens to the terminal events of a type while anyone waits for a task of
// it, without a consumer on the server: a wait looks at the stored task now and then, so a lost event costs a moment only.
type ends struct {
	nc     *nats.Conn
	closed chan struct{}

	mu    sync.Mutex
	types map[string]*endsOfType
}

type endsOfType struct {
	subs    []*nats.Subscription
	waiters map[string]map[chan struct{}]struct{} // by task id
}

func newEnds(nc *nats.Conn) *ends {
	return &ends{nc: nc, closed: make(chan struct{}), types: map[string]*endsOfType{}}
}

// listen returns a channel that receives when the task has ended, and what stops listening.
func (e *ends) listen(taskType, id string) (told <-chan struct{}, stop func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.types[taskType]
	if of == nil {
		of = &endsOfType{waiters: map[string]map[chan struct{}]struct{}{}}
		for _, state := range []task.State{task.Success, task.Failed, task.Cancelled} {
			sub, err := e.nc.Subscribe(events.SubjectEvent(taskType, string(state)), func(m *nats.Msg) { e.tell(taskType, m.Data) })
			if err != nil {
				of.unsubscribe()
				return nil, nil, err
			}
			of.subs = append(of.subs, sub)
		}
		e.types[taskType] = of
	}
	ch := make(chan struct{}, 1)
	if of.waiters[id] == nil {
		of.waiters[id] = map[chan struct{}]struct{}{}
	}
	of.waiters[id][ch] = struct{}{}
	return ch, func() { e.leave(taskType, id, ch) }, nil
}

func (e *ends) leave(taskType, id string, ch chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.types[taskType]
	delete(of.waiters[id], ch)
	if len(of.waiters[id]) == 0 {
		delete(of.waiters, id)
	}
	if len(of.waiters) == 0 {
		of.unsubscribe()
		delete(e.types, taskType)
	}
}

func (e *ends) tell(taskType string, data []byte) {
	event, err := events.DecodeEvent(data)
	if err != nil {
		return // not an event of ours; the waiter looks by itself
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.types[taskType]
	if of == nil {
		return
	}
	for ch := range of.waiters[event.ID] {
		select {
		case ch <- struct{}{}:
		default: // told already
		}
	}
}

func (e *ends) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.closed:
	default:
		close(e.closed)
	}
}

func (of *endsOfType) unsubscribe() {
	for _, sub := range of.subs {
		_ = sub.Unsubscribe() // fails only on a closed connection, where nothing is left to end
	}
}
