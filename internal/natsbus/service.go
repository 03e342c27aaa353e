package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Endpoint is one subject of a service. Handle gets the request's headers and body and returns the reply, which is
// written as JSON. An [*events.Error] it returns goes to the caller; any other error is logged, and the caller is told no
// more than that it is internal. Its context ends at the request's deadline.
type Endpoint struct {
	Subject string
	Handle  func(ctx context.Context, header events.Header, body []byte) (reply any, err error)
}

// ServiceOptions bound a service.
type ServiceOptions struct {
	Name     string        // of letters, digits, _ and -
	Version  string        // semantic version; default "0.0.0"
	Workers  int           // requests handled side by side, over all endpoints; default 32
	Queue    int           // requests that wait for a worker; more are refused as unavailable; default 1,024
	Deadline time.Duration // of a request, from its arrival; default 5 s: callers wait for 10 s, and are to hear why
}

// Service answers requests by the NATS services API. All processes that serve the same subjects share the requests.
type Service struct {
	bus     *Bus
	opts    ServiceOptions
	micro   micro.Service
	queue   chan request
	workers sync.WaitGroup

	mu     sync.RWMutex
	closed bool
}

type request struct {
	endpoint Endpoint
	micro.Request
	deadline time.Time
}

// Serve begins to answer requests. Stop it before the bus is closed.
func (b *Bus) Serve(opts ServiceOptions, endpoints ...Endpoint) (*Service, error) {
	opts.Version = cmp.Or(opts.Version, "0.0.0")
	opts.Workers = cmp.Or(opts.Workers, 32)
	opts.Queue = cmp.Or(opts.Queue, 1024)
	opts.Deadline = cmp.Or(opts.Deadline, 5*time.Second)
	s := &Service{bus: b, opts: opts, queue: make(chan request, opts.Queue)}
	var err error
	s.micro, err = micro.AddService(b.nc, micro.Config{
		Name: opts.Name, Version: opts.Version, QueueGroup: opts.Name,
		ErrorHandler: func(_ micro.Service, e *micro.NATSError) {
			b.log.Error("service error", slog.String("subject", e.Subject), slog.Any("err", e))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", opts.Name, err)
	}
	for range opts.Workers {
		s.workers.Go(s.work)
	}
	for _, e := range endpoints {
		// An endpoint calls its handler for one request after the other, so all this one does is to queue.
		handler := micro.HandlerFunc(func(r micro.Request) { s.take(request{e, r, time.Now().Add(opts.Deadline)}) })
		if err := s.micro.AddEndpoint(endpointName(e.Subject), handler, micro.WithEndpointSubject(e.Subject)); err != nil {
			stopCtx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return nil, errors.Join(fmt.Errorf("serve %s: %w", e.Subject, err), s.Stop(stopCtx))
		}
	}
	return s, nil
}

// endpointName makes a name without dots: ax.api.schedule.put is schedule_put.
func endpointName(subject string) string {
	return strings.ReplaceAll(strings.TrimPrefix(subject, events.SubjectAPI+"."), ".", "_")
}

func (s *Service) take(r request) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		s.respond(r, nil, &events.Error{Code: events.CodeUnavailable, Message: "this process is stopping; ask again"})
		return
	}
	select {
	case s.queue <- r:
	default:
		s.respond(r, nil, &events.Error{Code: events.CodeUnavailable, Message: "too many requests wait already; ask again in a moment"})
	}
}

func (s *Service) work() {
	for r := range s.queue {
		s.answer(r)
	}
}

func (s *Service) answer(r request) {
	begun := time.Now()
	ctx, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	code := "ok"
	reply, err := s.call(ctx, r)
	var refusal *events.Error
	if err != nil {
		refusal = s.explain(r, err)
		code = refusal.Code
	}
	s.respond(r, reply, refusal)
	s.bus.metrics.requests.WithLabelValues(endpointName(r.endpoint.Subject), code).Observe(time.Since(begun).Seconds())
}

func (s *Service) call(ctx context.Context, r request) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	if ctx.Err() != nil { // it waited too long for a worker, and nobody waits for the answer any more
		return nil, ctx.Err()
	}
	return r.endpoint.Handle(ctx, events.Header(r.Headers()), r.Data())
}

// explain turns an error into what the caller may know.
func (s *Service) explain(r request, err error) *events.Error {
	if e, ok := errors.AsType[*events.Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &events.Error{Code: events.CodeUnavailable, Message: fmt.Sprintf("not done within %s; whether it took effect is not known, ask again with the same id", s.opts.Deadline)}
	}
	s.bus.log.Error("request failed", slog.String("subject", r.Subject()), slog.Any("err", err))
	return &events.Error{Code: events.CodeInternal, Message: "an internal error; the log of the service tells more"}
}

// respond sends a reply, or an error in the way of the services API: two headers, and the error as body. It publishes by
// itself, because the library's request is not made to be answered from another goroutine than its handler's.
func (s *Service) respond(r request, reply any, refusal *events.Error) {
	if r.Reply() == "" {
		return // nobody waits
	}
	m := &nats.Msg{Subject: r.Reply()}
	if refusal == nil {
		var err error
		if m.Data, err = events.Encode(reply); err != nil {
			refusal = s.explain(r, err)
		} else if int64(len(m.Data)) > s.bus.nc.MaxPayload() {
			refusal = &events.Error{Code: events.CodeTooLarge, Message: fmt.Sprintf("the answer has %d bytes, more than a message may have; ask for less", len(m.Data))}
		}
	}
	if refusal != nil {
		m.Header = nats.Header{
			micro.ErrorCodeHeader: {strconv.Itoa(refusal.Status())}, micro.ErrorHeader: {headerText(refusal.Message)},
		}
		m.Data, _ = events.Encode(refusal) // strings only: always writable
	}
	if err := s.bus.nc.PublishMsg(m); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.bus.log.Warn("answer was not sent", slog.String("subject", r.Subject()), slog.Any("err", err))
	}
}

// headerText makes one line of a sentence, which may quote what the caller sent.
func headerText(s string) string {
	line := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return cmp.Or(strings.TrimSpace(line), "error")
}

// Stop takes no more requests and returns when those taken are answered, or with the error of ctx.
func (s *Service) Stop(ctx context.Context) error {
	err := s.micro.Stop()
	if err == nil && s.bus.nc.IsConnected() {
		// Behind this round trip the server sends no more requests here. Those on their way are taken or told to ask again.
		err = s.bus.nc.FlushWithContext(ctx)
	}
	if errors.Is(err, nats.ErrConnectionClosed) {
		err = nil
	}
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.queue) // nobody sends any more: take looks at closed under the lock
	}
	done := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(done)
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("stop service %s: requests are still being handled: %w", s.opts.Name, ctx.Err()))
	}
}
