package events

import "strings"

// Streams. Their settings are declared once, in internal/natsbus.
const (
	StreamSubmit = "AX_SUBMIT" // what users want done; a work queue that the submitter empties
	StreamWork   = "AX_WORK"   // signals "have a look at these tasks"; may be lost without harm
	StreamEvent  = "AX_EVENT"  // every change of state, for seven days
	StreamDead   = "AX_DEAD"   // what could not be processed, with the reason and the original
)

// Subjects and subject prefixes.
const (
	SubjectSubmitAll   = "ax.submit.>"
	SubjectWorkflow    = "ax.workflow.submit"
	SubjectWorkAll     = "ax.work.>"
	SubjectEventAll    = "ax.event.>"
	SubjectDeadAll     = "ax.dead.>"
	SubjectDeadSubmit  = "ax.dead.submit"
	SubjectDeadWebhook = "ax.dead.webhook"
	SubjectCancel      = "ax.control.cancel" // core NATS: tells workers of a cancellation at once
	SubjectAPI         = "ax.api"            // request/reply by the NATS services API

	prefixSubmit = "ax.submit."
	prefixWork   = "ax.work."
	prefixEvent  = "ax.event."
)

// SubjectSubmit is where a submission of a task type is published.
func SubjectSubmit(taskType string) string { return prefixSubmit + taskType }

// TypeOfSubmit returns the task type of a submit subject, and false when the subject is not one.
func TypeOfSubmit(subject string) (string, bool) { return strings.CutPrefix(subject, prefixSubmit) }

// SubjectWork is where the signals of one lane of a type and channel are published.
func SubjectWork(taskType, channel, lane string) string {
	return prefixWork + taskType + "." + channel + "." + lane
}

// SubjectEvent is where a change of state is published; either argument may be "*" in a subscription.
func SubjectEvent(taskType, state string) string { return prefixEvent + taskType + "." + state }

// WorkConsumer is the name of the durable that all workers of a lane share.
func WorkConsumer(taskType, channel, lane string) string {
	return "w_" + taskType + "_" + channel + "_" + lane
}

// Answerable reports whether answers may be sent to a subject that a message names in its header Ax-Reply-To: a plain one,
// without wildcards and white space, that belongs neither to ax nor to NATS. Else a message could make ax publish into its
// own streams, or ask the server to delete them.
func Answerable(subject string) bool {
	if len(subject) > 255 || subject == "ax" || strings.HasPrefix(subject, "ax.") || strings.HasPrefix(subject, "$") {
		return false
	}
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsAny(token, "*>") || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return false
		}
	}
	return true
}

// Headers.
const (
	HeaderMsgID       = "Nats-Msg-Id"
	HeaderReplyTo     = "Ax-Reply-To" // answers to ax.submit.* go to this subject, because JetStream keeps no reply subject
	HeaderTraceparent = "traceparent"
	HeaderCEID        = "ce-id"
	HeaderCESource    = "ce-source"
	HeaderCEType      = "ce-type"
	HeaderCESpec      = "ce-specversion"
	HeaderCETime      = "ce-time"
	HeaderCESubject   = "ce-subject"
)

// Types of CloudEvents, with their version.
const (
	TypeTaskSubmitted = "ax.task.submitted.v1"
	TypeTaskChanged   = "ax.task.changed.v1"
	TypeTaskSignalled = "ax.task.signalled.v1"
	TypeSubmitDead    = "ax.submit.dead.v1"
	TypeEventGap      = "ax.event.gap.v1"
)
