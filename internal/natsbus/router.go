package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker/v2"
)

// RouterOptions bound a Watermill router.
type RouterOptions struct {
	// HandlerTimeout ends the context of each handler; default 30 s.
	HandlerTimeout time.Duration
	// CloseTimeout is how long Close waits for handlers; default 10 s.
	CloseTimeout time.Duration
}

// NewRouter makes a Watermill router whose handlers survive panics (as errors), pass on the correlation id and end in time.
// Its messages are logged at debug, except errors.
func (b *Bus) NewRouter(opts RouterOptions) (*message.Router, error) {
	logger := watermill.NewSlogLoggerWithLevelMapping(b.log, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: cmp.Or(opts.CloseTimeout, 10*time.Second)}, logger)
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	r.AddMiddleware(middleware.Recoverer, middleware.CorrelationID, middleware.Timeout(cmp.Or(opts.HandlerTimeout, 30*time.Second)))
	return r, nil
}

// BreakerOptions bound a breaker around a handler.
type BreakerOptions struct {
	Name string        // labels it in logs and metrics
	Trip uint32        // failures in a row that open it; default 5
	Cool time.Duration // how long it stays open; default 10 s
}

// Breaker is a middleware that stops calling a handler which failed several times in a row. While it is open, messages go
// back to the server and come again when it may have closed; that costs them nothing, as deliveries are not limited.
func (b *Bus) Breaker(opts BreakerOptions) message.HandlerMiddleware {
	cool := cmp.Or(opts.Cool, 10*time.Second)
	breaker := b.newBreaker(opts.Name, cmp.Or(opts.Trip, 5), cool)
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			_, err = breaker.Execute(func() (struct{}, error) {
				var err error
				produced, err = next(msg)
				if err != nil && errors.Is(msg.Context().Err(), context.Canceled) {
					err = fmt.Errorf("%w: %w", context.Canceled, err) // the subscription ended: no verdict on the handler
				}
				return struct{}{}, err
			})
			if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
				msg.Metadata.Set(MetaNakDelay, delay(1, cool, cool).String())
				err = fmt.Errorf("%w: %s: %w", ErrOpen, opts.Name, err)
			}
			return produced, err
		}
	}
}
