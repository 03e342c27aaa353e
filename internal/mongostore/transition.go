package mongostore

import (
	"fmt"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/ax-scheduler/ax/internal/task"
)

// move is one transition of [task.Transitions] (or a control write of [task.Stays]) as an update pipeline. The guard in the
// update's filter must fix the state to from; the pipeline then raises seq, pushes the history entry and sets the change string
// in the same write.
type move struct {
	from   task.State
	to     task.State
	reason task.Reason
	by     string // mover and who: "worker/<id>", "reaper/<id>", ...
	// unlessCancelled: a task with a cancel request becomes cancelled instead of to, with the reason cancelled.
	unlessCancelled bool
	// withError: the history entry repeats lastError, which this move sets.
	withError bool
}

// pipeline is an encoded update pipeline (a BSON array).
type pipeline []byte

// MarshalBSONValue hands the driver the bytes as they are.
func (p pipeline) MarshalBSONValue() (byte, []byte, error) { return byte(bsoncore.TypeArray), p, nil }

// pipeline builds the update: first set (whose expressions see the document as it was) together with state and seq, then the
// record of the change (which sees the new values). Values from outside must stand in set as literal(v).
func (m move) pipeline(set bson.D) (pipeline, error) {
	if !task.Allowed(m.from, m.to, m.reason) {
		return nil, fmt.Errorf("no transition from %q to %q because of %q", m.from, m.to, m.reason)
	}
	var state any = string(m.to)
	if m.unlessCancelled {
		state = ifCancelAsked(string(task.Cancelled), state)
	}
	first := append(bson.D{{Key: "state", Value: state}, {Key: "seq", Value: add("$seq", int64(1))}}, set...)
	stage, err := bson.Marshal(bson.D{{Key: "$set", Value: first}})
	if err != nil {
		return nil, fmt.Errorf("encode update: %w", err)
	}
	record, err := records.of(m)
	if err != nil {
		return nil, err
	}
	return stages(stage, record), nil
}

func stages(docs ...[]byte) pipeline {
	values := make([]bsoncore.Value, len(docs))
	for i, d := range docs {
		values[i] = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: d}
	}
	return pipeline(bsoncore.BuildArray(nil, values...))
}

// record is the stage that sets change and pushes the history entry; see [task.Change] for the parts of the string.
func (m move) record() ([]byte, error) {
	var reason any = string(m.reason)
	if m.unlessCancelled {
		reason = bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$eq", Value: bson.A{"$state", string(task.Cancelled)}}}, string(task.ReasonCancelled), reason}}}
	}
	claim := bson.D{{Key: "$ifNull", Value: bson.A{"$claim", ""}}}
	entry := bson.D{
		{Key: "seq", Value: "$seq"}, {Key: "at", Value: "$$NOW"}, {Key: "from", Value: string(m.from)}, {Key: "to", Value: "$state"},
		{Key: "reason", Value: reason}, {Key: "by", Value: literal(m.by)}, {Key: "attempt", Value: "$attempts"},
		{Key: "claim", Value: claim},
	}
	if m.withError {
		entry = append(entry, bson.E{Key: "error", Value: "$lastError"})
	}
	return bson.Marshal(bson.D{{Key: "$set", Value: bson.D{
		{Key: "change", Value: bson.D{{Key: "$concat", Value: bson.A{
			toString("$seq"), "|", "$taskType", "|", "$channel", "|", toString("$priority"), "|", string(m.from), "|", "$state", "|",
			reason, "|", toString("$attempts"), "|", claim, "|", msOf("$$NOW"), "|", msOf("$scheduledAt"), "|",
			literal(m.by), "|", "$echo"}}}},
		{Key: "history", Value: bson.D{{Key: "$concatArrays", Value: bson.A{
			bson.D{{Key: "$slice", Value: bson.A{"$history", 1 - task.MaxHistory}}}, bson.A{entry}}}}},
	}}})
}

// records keeps the encoded record stages: a process writes the same few moves under its own name for ever.
var records = recordCache{stages: make(map[move][]byte)}

const maxRecords = 256

type recordCache struct {
	mu     sync.RWMutex
	stages map[move][]byte
}

func (c *recordCache) of(m move) ([]byte, error) {
	c.mu.RLock()
	stage, ok := c.stages[m]
	c.mu.RUnlock()
	if ok {
		return stage, nil
	}
	stage, err := m.record()
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.stages) >= maxRecords { // names from outside (a cancel's) must not fill the memory
		clear(c.stages)
	}
	c.stages[m] = stage
	return stage, nil
}

// afterRunning is what the end of an execution clears and sets besides its own facts: nobody owns the task any more, and it is
// either finished, or pending again with its expiry as the next thing to check.
func afterRunning(to task.State) bson.D {
	set := bson.D{{Key: "workerId", Value: removed}, {Key: "leaseUntil", Value: removed}, {Key: "deadlineAt", Value: removed}}
	if to != task.Pending {
		return append(set, bson.E{Key: "finishedAt", Value: "$$NOW"}, bson.E{Key: "checkAt", Value: removed})
	}
	return append(set,
		bson.E{Key: "finishedAt", Value: ifCancelAsked("$$NOW", removed)},
		bson.E{Key: "checkAt", Value: ifCancelAsked(removed, orRemove("$expiresAt"))})
}

// dueAgain sets the start time of a task that goes back to pending without a delay of its own. The time stays, so that the task stands
// before whatever fell due later; but where the server's clock went back since the claim it has not come again yet, and what has
// already run must not wait for it.
var dueAgain = bson.E{Key: "scheduledAt", Value: earliest("$scheduledAt", "$$NOW")}

// Expressions.

// literal keeps a value from outside from being read as a field path or an expression.
func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

func add(terms ...any) bson.D { return bson.D{{Key: "$add", Value: bson.A(terms)}} }

// earliest ignores dates that are missing. It compares milliseconds: one server orders a stored date and a computed one wrongly.
func earliest(dates ...any) bson.D { return pick("$min", dates) }

// latest is the same for the last one.
func latest(dates ...any) bson.D { return pick("$max", dates) }

func pick(operator string, dates []any) bson.D {
	times := make(bson.A, len(dates))
	for i, d := range dates {
		times[i] = inMs(d)
	}
	return bson.D{{Key: "$toDate", Value: bson.D{{Key: operator, Value: times}}}}
}

// passed is whether a date lies at or before $$NOW; a missing one does.
func passed(date any) bson.D {
	return bson.D{{Key: "$lte", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{inMs(date), int64(0)}}}, inMs("$$NOW")}}}
}

// inMs is a date as milliseconds since 1970; null when it is missing.
func inMs(date any) bson.D { return bson.D{{Key: "$toLong", Value: date}} }

func toString(expr any) bson.D { return bson.D{{Key: "$toString", Value: expr}} }

// msOf is a date as the text of its milliseconds since 1970.
func msOf(date any) bson.D { return toString(inMs(date)) }

// later is a date plus milliseconds; null when the date is missing. ($add of a date is not understood by every server.)
func later(date, ms any) bson.D {
	return bson.D{{Key: "$dateAdd", Value: bson.D{
		{Key: "startDate", Value: date}, {Key: "unit", Value: "millisecond"}, {Key: "amount", Value: ms}}}}
}

// orRemove is the value of expr, or no field at all when it is missing.
func orRemove(expr any) bson.D { return bson.D{{Key: "$ifNull", Value: bson.A{expr, "$$REMOVE"}}} }

// ifCancelAsked chooses by whether the document has a cancel request. A date counts as true.
func ifCancelAsked(then, otherwise any) bson.D {
	return bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$ifNull", Value: bson.A{"$cancelRequestedAt", false}}}, then, otherwise}}}
}

const removed = "$$REMOVE"

// in is the filter condition "one of these".
func in(values []string) bson.D { return bson.D{{Key: "$in", Value: values}} }

// is is the filter condition "equal to this" beside an _id. The planner of SecantusDB looks for an index for each plain equality and
// range, even when the _id is given, and that costs it more than the look-up itself; a list of one is left alone, and means the same.
func is(value any) bson.D { return bson.D{{Key: "$in", Value: bson.A{value}}} }

// mover is the by of a change: who moves tasks, and which of them. Bars would break the change string.
func mover(kind, name string) string {
	if name == "" {
		return kind
	}
	return kind + "/" + strings.ReplaceAll(cut(name, task.MaxBy), "|", "/")
}
