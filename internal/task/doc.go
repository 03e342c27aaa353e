// Package task is the domain of ax: what a task is, which states it passes through, who may move it and why, how long a
// failed attempt waits, and what a submission may contain.
//
// It imports the standard library only. How a task is stored is internal/mongostore's business, how it travels is
// pkg/events'. Every part of the system asks this package whether a transition is legal, so the rules live here once.
package task
