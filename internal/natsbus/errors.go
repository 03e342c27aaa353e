package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Answers to a publish, the same values as in pkg/events.
var (
	ErrFull     = events.ErrFull
	ErrOpen     = events.ErrOpen
	ErrTooLarge = events.ErrTooLarge
)

// ErrClosed: the consumer or publisher was closed.
var ErrClosed = errors.New("closed")

// ErrDisconnected: NATS is out of reach at the moment.
var ErrDisconnected = errors.New("NATS is out of reach")

// Codes of JetStream errors that the client library has no names for.
const (
	codeAccountExceeded jetstream.ErrorCode = 10002
	codeNoResources     jetstream.ErrorCode = 10023
	codeMemoryExceeded  jetstream.ErrorCode = 10028
	codeStorageExceeded jetstream.ErrorCode = 10047
	codeStoreFailed     jetstream.ErrorCode = 10077
)

// outcome is what became of one publish.
type outcome int

const (
	stored outcome = iota
	refused
	unknown // not answered: it may be stored or not, or come to be stored yet
)

// classify tells answers that cannot change by trying again (refused) from the absence of one (unknown).
func classify(err error) (outcome, error) {
	if err == nil {
		return stored, nil
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch api.ErrorCode {
		case codeStoreFailed:
			if strings.Contains(api.Description, "maximum") { // messages, bytes, or messages per subject exceeded
				return refused, fmt.Errorf("%w: %w", ErrFull, err)
			}
			return unknown, err
		case codeNoResources, codeAccountExceeded, codeMemoryExceeded, codeStorageExceeded:
			return refused, fmt.Errorf("%w: %w", ErrFull, err)
		case jetstream.JSErrCodeStreamMessageExceedsMaximum:
			return refused, fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		if api.Code >= 400 && api.Code < 500 && api.Code != 408 && api.Code != 429 {
			return refused, err
		}
		return unknown, err
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return refused, fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg),
		errors.Is(err, nats.ErrInvalidMsg), errors.Is(err, nats.ErrHeadersNotSupported), errors.Is(err, jetstream.ErrInvalidOption):
		return refused, err
	case errors.Is(err, jetstream.ErrJetStreamPublisherClosed):
		return refused, ErrClosed
	case errors.Is(err, context.Canceled), errors.Is(err, ErrClosed):
		return refused, err
	}
	return unknown, err
}

// final reports whether a refusal lies in the message itself. A full stream gets room again, and a closed connection says
// nothing about the message.
func final(err error) bool {
	return errors.Is(err, ErrTooLarge) || errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrBadHeaderMsg) || errors.Is(err, nats.ErrInvalidMsg)
}
