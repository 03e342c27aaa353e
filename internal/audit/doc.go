// Package audit checks what ax promises against what is stored: it reads tasks with their histories, dead letters, schedules, workers
// and, if asked, the event stream, and reports each invariant that does not hold. It writes nothing.
//
// It works on a live system. A task is one document and each of its changes one write, so a task read once is consistent in itself; what
// concerns several documents, or looks wrong, is read again before it is reported. What others have to do in time (a pending task is
// started, a waiting one released, a slot fired) counts as broken only when it is late by [Options.Late], those who should do it are
// there, and it is still so after [Options.Settle].
//
// Reads go by windows of an index, the size of which follows what they find, so that none grows with the number of tasks. Memory is
// bounded; what does not fit is said to be unchecked rather than passed over.
package audit
