package submit

import (
	"context"
	"errors"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/pkg/events"
)

// maxDeadBody is how much of a refused body is kept: what fits, in base64 and with its reason, into a message of 1 MiB.
const maxDeadBody = 700 << 10

// maxDeadBytes bounds the bodies that wait for AX_DEAD.
const maxDeadBytes = 16 << 20

// refusal is a message that can never become a task.
type refusal struct {
	msg *held
	why *events.Error
}

// refuse sends a message on its way into AX_DEAD. When too many are on it already, this one is delivered again later: a flood of
// bad submissions must not hold up good ones.
func (s *Submitter) refuse(m *held, why *events.Error) {
	if why.Code == events.CodeIDConflict { // found by the store, which does not know what the sender knows
		why = intake.IDConflict(idOf(m))
	}
	size := int64(len(m.Data))
	if s.deadBytes.Add(size) <= maxDeadBytes {
		select {
		case s.dead <- &refusal{m, why}:
			return
		default:
		}
	}
	s.deadBytes.Add(-size)
	s.held.giveBack(m, s.cfg.Aside)
}

// bury stores refused messages in AX_DEAD and acknowledges each only when it is there, until s.dead is closed.
func (s *Submitter) bury(ctx context.Context) {
	for first := range s.dead {
		batch := []*refusal{first}
		for size := len(first.msg.Data); size < maxBatchBytes && len(batch) < s.cfg.Batch; {
			var next *refusal
			select {
			case next = <-s.dead:
			default:
			}
			if next == nil { // none is waiting, or the last one was taken
				break
			}
			batch, size = append(batch, next), size+len(next.msg.Data)
		}
		s.publishDead(ctx, batch)
		for _, r := range batch {
			s.deadBytes.Add(-int64(len(r.msg.Data)))
		}
	}
}

func (s *Submitter) publishDead(ctx context.Context, batch []*refusal) {
	msgs := make([]events.Msg, len(batch))
	for i, r := range batch {
		msgs[i] = deadMessage(r, maxDeadBody)
	}
	for i, err := range s.bus.Publish(ctx, msgs) {
		r := batch[i]
		if errors.Is(err, events.ErrTooLarge) { // the server takes less than is usual
			err = s.bus.Publish(ctx, []events.Msg{deadMessage(r, 0)})[0]
		}
		if err != nil {
			s.noisy.Do(func() {
				s.log.Warn("a refused submission could not be stored in AX_DEAD; it is tried again later", "sequence", r.msg.Sequence, "err", err)
			})
			s.held.giveBack(r.msg, s.cfg.Aside)
			continue
		}
		s.metrics.refused.WithLabelValues(r.why.Code).Inc()
		s.noisyRefusals.Do(func() {
			s.log.Warn("submission refused; it is kept in AX_DEAD", "subject", events.Shorten(r.msg.Subject), "sequence", r.msg.Sequence, "code", r.why.Code, "field", r.why.Field)
		})
		s.held.ack(r.msg)
		s.answer(r.msg, events.Answer{ID: idOf(r.msg), Error: r.why})
	}
}

func deadMessage(r *refusal, most int) events.Msg {
	dead := events.DeadSubmit{Subject: r.msg.Subject, Sequence: r.msg.Sequence, At: events.FormatTime(r.msg.Timestamp), Error: *r.why, Body: r.msg.Data}
	if len(dead.Body) > most {
		dead.Body, dead.Size = dead.Body[:most], len(dead.Body)
	}
	body, err := events.Encode(dead)
	if err != nil { // texts and bytes can always be encoded
		panic(err)
	}
	// The id follows from the message's place in the stream, so that a redelivery after a crash is buried once.
	id := "dead:" + events.DeriveID(r.msg.Timestamp, r.msg.Sequence, r.msg.Subject)
	return events.Msg{Subject: events.SubjectDeadSubmit, Data: body, ID: id,
		Header: events.Meta{ID: id, Source: events.Source("submitter"), Type: events.TypeSubmitDead, Time: r.msg.Timestamp}.Header()}
}

// idOf is the id that the sender knows the submission by, if its body can be read.
func idOf(m *held) string {
	sub, err := events.DecodeSubmit(m.Data)
	if err != nil {
		return ""
	}
	return sub.ID
}
