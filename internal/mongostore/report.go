package mongostore

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// report is one outcome as it will be stored.
type report struct {
	place  int // in the batch, for its answer
	o      *task.Outcome
	by     string
	to     task.State
	reason task.Reason
	delay  time.Duration
	result string // JSON; empty: none
	fails  bool   // charged as a failure and leaves an error
	code   string // of the error
	error  string // as stored
}

// likeness is what reports must share to be written by one command; results, errors and delays may differ.
type likeness struct {
	claim, by string
	to        task.State
	reason    task.Reason
	hasResult bool
	fails     bool
	code      string
}

func (r *report) likeness() likeness {
	return likeness{r.o.Claim, r.by, r.to, r.reason, r.result != "", r.fails, r.code}
}

func (r *report) size() int { return len(r.o.ID) + len(r.result) + len(r.error) + 64 }

// newReport decides what an outcome leads to.
func newReport(place int, o *task.Outcome) (*report, error) {
	r := &report{place: place, o: o, by: mover(task.MoverWorker, o.Worker)}
	failure := o.Error
	switch o.Kind {
	case task.Succeeded:
		if refusal := refuseResult(o.Result); refusal != nil {
			rejected := *o
			rejected.Kind, rejected.Result = task.RejectedResult, nil
			r.o, failure = &rejected, refusal
		}
	case task.FailedAttempt:
		if o.Task == nil {
			return nil, fmt.Errorf("task %s: %w", o.ID, errNoTask)
		}
	}
	r.to, r.reason, r.delay = r.o.Decide()
	switch r.o.Kind {
	case task.Succeeded:
		r.result = string(o.Result)
	case task.FailedAttempt, task.FailedForGood, task.RejectedResult:
		r.fails = true
		stored := task.Error{Message: "no error was given"}
		if failure != nil {
			stored = *failure
		}
		if o.Task != nil {
			stored.Attempt = o.Task.Attempts
		}
		r.code, r.error = cut(stored.Code, maxErrorCode), errorText(&stored)
	case task.CancelledByRequest:
		// Whether a cancel was asked for is the database's word, not that of the message that stopped the handler: without a
		// stored request the task goes back to pending, uncharged.
		r.to, r.reason = task.Pending, task.ReasonReleased
	}
	return r, nil
}

func refuseResult(result json.RawMessage) *task.Error {
	switch {
	case len(result) > task.MaxResult:
		return &task.Error{Cause: task.ReasonRejectedResult,
			Message: fmt.Sprintf("the result is %d bytes of JSON; at most %d are stored", len(result), task.MaxResult)}
	case result != nil && !validJSON(result):
		return &task.Error{Cause: task.ReasonRejectedResult, Message: "the result is not JSON"}
	}
	return nil
}

// validJSON also asks for UTF-8, which the JSON reader lets pass and the server does not.
func validJSON(text []byte) bool { return json.Valid(text) && utf8.Valid(text) }

// groupReports puts together what one command can write, within the bounds of a command.
func groupReports(outcomes []task.Outcome) ([][]*report, error) {
	var order []likeness
	alike := make(map[likeness][]*report)
	for i := range outcomes {
		r, err := newReport(i, &outcomes[i])
		if err != nil {
			return nil, err
		}
		l := r.likeness()
		if alike[l] == nil {
			order = append(order, l)
		}
		alike[l] = append(alike[l], r)
	}
	var groups [][]*report
	for _, l := range order {
		groups = append(groups, splitReports(alike[l])...)
	}
	return groups, nil
}

// splitReports cuts a list into parts that fit into one command each.
func splitReports(reports []*report) [][]*report {
	var parts [][]*report
	start, bytes := 0, 0
	for i, r := range reports {
		if n := i - start; n == maxBatch || n > 0 && bytes+r.size() > maxBatchBytes {
			parts = append(parts, reports[start:i])
			start, bytes = i, 0
		}
		bytes += r.size()
	}
	if start < len(reports) {
		parts = append(parts, reports[start:])
	}
	return parts
}

// reportUpdate is the transition that reports of one likeness make.
func reportUpdate(g []*report) (pipeline, error) {
	r := g[0]
	m := move{from: task.Running, to: r.to, reason: r.reason, by: r.by, unlessCancelled: r.to == task.Pending, withError: r.fails}
	set := afterRunning(r.to)
	switch r.reason {
	case task.ReasonRetry, task.ReasonSnoozed:
		delay := perTask(g, func(r *report) any { return r.delay.Milliseconds() })
		set = append(set, bson.E{Key: "scheduledAt", Value: ifCancelAsked("$scheduledAt", later("$$NOW", delay))})
	case task.ReasonReleased:
		set = append(set, dueAgain)
	}
	if r.result != "" {
		set = append(set, bson.E{Key: "result", Value: perTask(g, func(r *report) any { return r.result })})
	}
	if r.fails {
		var code any = removed
		if r.code != "" {
			code = literal(r.code)
		}
		set = append(set,
			bson.E{Key: "failures", Value: add("$failures", int32(1))},
			bson.E{Key: "lastError", Value: perTask(g, func(r *report) any { return r.error })},
			bson.E{Key: "errorCode", Value: code})
	}
	return m.pipeline(set)
}

// perTask is an expression for a value of each task of the group: the one value when they share it, else the element of a literal
// array at the place of the task's id.
func perTask(g []*report, value func(*report) any) bson.D {
	values := make(bson.A, len(g))
	same := true
	for i, r := range g {
		values[i] = value(r)
		same = same && values[i] == values[0]
	}
	if same {
		return literal(values[0])
	}
	at := bson.D{{Key: "$indexOfArray", Value: bson.A{literal(reportIDs(g)), "$_id"}}}
	return bson.D{{Key: "$arrayElemAt", Value: bson.A{literal(values), at}}}
}
