package events

import (
	"errors"
	"time"
)

// Msg is a message to publish. ID becomes Nats-Msg-Id: a copy that is sent again within the stream's window (two minutes)
// is stored once. A message without an ID may be stored twice when its first acknowledgement is lost.
type Msg struct {
	Subject string
	Data    []byte
	Header  Header // not changed by publishing; may be nil
	ID      string
}

// Message is a message received from a stream. Sequence and Timestamp are the stream's: the same at each delivery.
type Message struct {
	Subject   string
	Data      []byte
	Header    Header // may be nil
	Sequence  uint64
	Timestamp time.Time
	Delivered uint64 // 1 at the first delivery
	Acker
}

// Acker settles one delivery of a message. Each of its methods sends and does not wait for the server: a lost
// acknowledgement means a redelivery.
type Acker interface {
	// Ack says that the message is done with.
	Ack() error
	// NakWithDelay asks for a redelivery after d; 0 asks for one at once.
	NakWithDelay(d time.Duration) error
	// InProgress restarts the time after which the server would redeliver.
	InProgress() error
	// Term says that the message must never be delivered again, and why.
	Term(reason string) error
}

// Answers of the bus to a publish, for errors.Is.
var (
	// ErrFull: the stream takes no more (it discards new messages), or its server has no room. Nothing was stored.
	ErrFull = errors.New("stream is full")
	// ErrOpen: publishing failed so often lately that it is not tried for a few seconds. Nothing was sent.
	ErrOpen = errors.New("publishing is suspended after repeated failures")
	// ErrTooLarge: the message is larger than the server takes. It can never be stored.
	ErrTooLarge = errors.New("message is larger than the server takes")
)

// LaneInfo is the state of the consumer that the workers of one lane share.
type LaneInfo struct {
	Exists     bool   // false: no worker has asked for this lane yet, or not for an hour
	Pending    uint64 // signals not delivered to any worker yet
	AckPending uint64 // signals delivered and not acknowledged
}
