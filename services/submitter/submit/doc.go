// Package submit turns submissions into stored tasks, and answers requests about tasks.
//
// A submission that was queued in AX_SUBMIT ends as a task or in AX_DEAD with the reason, whatever happens in between: it is
// acknowledged only after a majority of the database has its task, or after AX_DEAD has it. A redelivery finds its task by its
// id, which is in the body or follows from the message's place in the stream, so there is never a second one. Whether a
// submission is bad is decided by looking at it, never by how often it was delivered, and one that is bad, or that the database
// refuses, holds up no other.
//
// While the database does not answer, nothing is acknowledged and nothing more is fetched: submissions wait in JetStream.
package submit
