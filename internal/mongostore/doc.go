// Package mongostore keeps tasks in MongoDB: documents, indexes, guarded updates, locks and cursors. It is the only place that
// knows how a task is stored.
//
// Every write that moves a task is one update of one document with its guard in the filter; the same update raises seq, pushes
// the history entry and sets the change string (see transition.go). No read on a hot path grows with the number of tasks.
//
// Query forms are the ones that are fast on every server that ax supports, including the local stand-in: equality and constant
// bounds on indexed fields, ids by $in. Nothing here counts tasks, sorts a claim, or uses $expr or a hint.
package mongostore
