package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/ax-scheduler/ax/pkg/events"
)

// requestTimeout bounds a request whose context has no deadline.
const requestTimeout = 10 * time.Second

// Request sends req as JSON to a subject of ax.api and reads the answer into reply (nil: it is not looked at). A refusal
// is an [*events.Error] as the service sent it; one with code unavailable is also returned when nobody answers. When the
// caller cancels ctx, its error is returned.
func (b *Bus) Request(ctx context.Context, subject string, req, reply any) error {
	return Request(ctx, b.nc, subject, req, reply)
}

// Request is [Bus.Request] on any connection.
func Request(ctx context.Context, nc *nats.Conn, subject string, req, reply any) error {
	data, err := events.Encode(req)
	if err != nil {
		return fmt.Errorf("request %s: %w", subject, err)
	}
	begun := time.Now()
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	answer, err := nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Data: data})
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrNoResponders):
		return &events.Error{Code: events.CodeUnavailable, Message: fmt.Sprintf("nobody answers on %s: start the submitter service (or ax dev), or check that AX_NATS_URL names the right NATS", subject)}
	case errors.Is(err, nats.ErrMaxPayload):
		return &events.Error{Code: events.CodeTooLarge, Message: fmt.Sprintf("the request has %d bytes; NATS takes at most %d", len(data), nc.MaxPayload())}
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("request %s: %w", subject, context.Canceled)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return &events.Error{Code: events.CodeUnavailable, Message: fmt.Sprintf("no answer on %s within %s; whether it took effect is not known, ask again with the same id", subject, time.Since(begun).Round(time.Millisecond))}
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrConnectionReconnecting):
		return &events.Error{Code: events.CodeUnavailable, Message: fmt.Sprintf("NATS is out of reach, so %s cannot be asked; try again when it is back", subject)}
	default:
		return fmt.Errorf("request %s: %w", subject, err)
	}
	if code := answer.Header.Get(micro.ErrorCodeHeader); code != "" {
		var e events.Error
		if json.Unmarshal(answer.Data, &e) != nil || e.Code == "" {
			e = events.Error{Code: events.CodeInternal, Message: fmt.Sprintf("%s was refused with %s: %s", subject, code, answer.Header.Get(micro.ErrorHeader))}
		}
		return &e
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(answer.Data, reply); err != nil {
		return fmt.Errorf("request %s: the answer cannot be read: %w", subject, err)
	}
	return nil
}
