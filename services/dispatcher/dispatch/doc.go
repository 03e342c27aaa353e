// Package dispatch turns pending tasks into work signals: the message that tells workers to have a look at some tasks.
//
// One process leads, by a lock that the caller holds for it, and everything it knows lives for one term of leadership
// only: it is learned from the change stream and from the due index, and a new leader learns it again. Nothing here decides
// anything. A signal that is lost, doubled or wrong costs a failed claim or a moment of waiting, never a task, because
// workers claim in the database.
//
// What it promises:
//   - A task that is due is signalled as soon as its change is seen, if its lane has room; a task that falls due within the
//     horizon is signalled at its time.
//   - Lanes are shallow: about one second of work of a lane lies in NATS. Beyond that the lane is in backlog, and is fed
//     from the collection in exact order (priority, then time, then id) as it drains. Every read begins at the front, so
//     that nothing that sorts earlier is passed by.
//   - The stream only makes it fast. The sweep finds what is due and was not signalled, the review finds signals that were
//     lost, and the walk once a minute finds what escaped both.
//   - Memory is bounded by the number of lanes and their depth, whatever the backlog.
package dispatch
