package mongostore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	streamAwait = time.Second      // what the server waits for an event before it says that there is none
	streamOpen  = 90 * time.Second // the first answer may need a long look through the oplog
	streamBatch = 1000             // changes that one Next returns at most
	reopenFirst = 100 * time.Millisecond
	reopenMost  = 5 * time.Second
)

// Server errors that no reopening from the same token can mend, and the one of a server without an oplog.
var (
	historyLost = []int{
		286,                                                // ChangeStreamHistoryLost
		280,                                                // ChangeStreamFatalError
		260,                                                // InvalidResumeToken, also of the event that ended an earlier stream
		136,                                                // CappedPositionLost
		2, 9, 14, 40576, 40647, 40648, 40649, 50788, 50811, // a token that this server did not make, and cannot read
	}
	noChangeStream = []int{40573}
)

// StreamOptions say where a change stream begins and what it carries.
type StreamOptions struct {
	Token  []byte // of an earlier stream; nil: from now on
	Detail bool   // also results and errors
}

// Stream follows the changes of tasks in the order in which they were committed. It is not safe for concurrent use.
type Stream struct {
	store  *Store
	detail bool
	cs     *mongo.ChangeStream // nil while it has to be opened again
	token  bson.Raw
	broken int // failures since the last answer
}

// OpenStream opens the change stream of the tasks. [task.ErrNoChangeStream]: this server has none. [task.ErrHistoryLost]: it no
// longer reaches back to the token, so what happened since must be found by a scan, and the token is worth nothing any more.
func (s *Store) OpenStream(ctx context.Context, opts StreamOptions) (*Stream, error) {
	if !s.features.ChangeStreams {
		return nil, fmt.Errorf("open change stream: %w", task.ErrNoChangeStream)
	}
	st := &Stream{store: s, detail: opts.Detail}
	if len(opts.Token) > 0 {
		st.token = slices.Clone(opts.Token)
		if err := st.token.Validate(); err != nil {
			return nil, fmt.Errorf("open change stream: %w: the token cannot be read: %w", task.ErrHistoryLost, err)
		}
	}
	if err := st.open(ctx); err != nil {
		return nil, fmt.Errorf("open change stream: %w", classify(err))
	}
	return st, nil
}

// trimmed keeps the events that carry a change, and of them only what is looked at: a beat of 1,000 tasks is 1,000 updates that
// nobody needs. A very small document may be reported as replaced instead of updated, so the change is looked for in both places.
func trimmed(detail bool) mongo.Pipeline {
	fields := bson.D{{Key: "operationType", Value: 1}, {Key: "documentKey", Value: 1},
		{Key: "fullDocument.change", Value: 1}, {Key: "updateDescription.updatedFields.change", Value: 1}}
	if detail {
		for _, f := range []string{"result", "lastError"} {
			fields = append(fields, bson.E{Key: "fullDocument." + f, Value: 1}, bson.E{Key: "updateDescription.updatedFields." + f, Value: 1})
		}
	}
	return mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
			bson.D{{Key: "operationType", Value: in([]string{"insert", "replace"})}},
			has("updateDescription.updatedFields.change"),
		}}}}},
		{{Key: "$project", Value: fields}},
	}
}

func (st *Stream) open(ctx context.Context) error {
	opts := options.ChangeStream().SetMaxAwaitTime(streamAwait).SetBatchSize(streamBatch)
	if st.token != nil {
		opts.SetResumeAfter(st.token)
	}
	pipeline := mongo.Pipeline{}
	if !st.store.wholeEvents {
		pipeline = trimmed(st.detail)
	}
	ctx, cancel := context.WithTimeout(ctx, streamOpen)
	defer cancel()
	cs, err := st.store.streamDB.Collection(TasksCollection).Watch(ctx, pipeline, opts)
	if err != nil {
		return err
	}
	st.cs = cs
	st.keepToken()
	return nil
}

// Next returns the changes that have come since, at least one unless none came within a second. When the connection breaks it is
// opened again behind the last change returned, and nothing is returned meanwhile. The errors are [task.ErrHistoryLost] and ctx's.
func (st *Stream) Next(ctx context.Context) ([]task.Observed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if st.cs == nil {
		return nil, st.reopen(ctx)
	}
	var seen []task.Observed
	// No deadline may stand in ctx: when one passes, the driver gives the whole stream up.
	for more := st.cs.TryNext(ctx); more; more = st.cs.TryNext(ctx) {
		if o, ok := st.observed(st.cs.Current); ok {
			seen = append(seen, o)
		}
		if st.cs.RemainingBatchLength() == 0 { // asking on would wait for more
			break
		}
	}
	err := st.cs.Err()
	if err == nil && st.cs.ID() == 0 { // the server ended it: the collection was dropped or renamed
		err = mongo.CommandError{Code: 286, Message: "the change stream was closed by the server"}
	}
	if err == nil {
		st.keepToken()
		st.broken = 0
		return seen, nil
	}
	if len(seen) > 0 { // hand over what was read; the failure shows again at the next call
		st.keepToken()
		st.drop(ctx)
		return seen, nil
	}
	return nil, st.failed(ctx, err)
}

// keepToken remembers the place behind what was read: of the last change, or, where the server has read on without finding one,
// behind that.
func (st *Stream) keepToken() {
	if token := st.cs.ResumeToken(); token != nil {
		st.token = slices.Clone(token)
	}
}

// Token is the place behind what Next returned last. It moves on while nothing happens, so it should be stored now and then.
func (st *Stream) Token() []byte { return slices.Clone(st.token) }

// Close ends the stream.
func (st *Stream) Close() { st.drop(context.Background()) }

func (st *Stream) drop(ctx context.Context) {
	if st.cs == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = st.cs.Close(ctx) // the server forgets a cursor by itself
	st.cs = nil
}

// failed decides what a broken stream means: the driver does not recover by itself once the server was away.
func (st *Stream) failed(ctx context.Context, err error) error {
	st.drop(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = classify(err)
	if errors.Is(err, task.ErrHistoryLost) || errors.Is(err, task.ErrNoChangeStream) {
		return fmt.Errorf("read change stream: %w", err)
	}
	if st.token == nil { // it broke before the server named a place: what was missed cannot be told
		return fmt.Errorf("read change stream: %w: %w", task.ErrHistoryLost, err)
	}
	level := slog.LevelWarn
	if st.broken++; st.broken > 1 { // said once an outage
		level = slog.LevelDebug
	}
	st.store.log.Log(ctx, level, "change stream broke; opening it again", "err", err)
	return nil
}

func (st *Stream) reopen(ctx context.Context) error {
	pause := min(reopenMost, reopenFirst<<min(st.broken, 10))
	timer := time.NewTimer(pause/2 + rand.N(pause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := st.open(ctx); err != nil {
		return st.failed(ctx, err)
	}
	if st.broken > 0 {
		st.store.log.Info("change stream is open again", "tries", st.broken)
	}
	return nil
}

// classify gives the errors that callers act on their names.
func classify(err error) error {
	var server mongo.ServerError
	if !errors.As(err, &server) {
		return err
	}
	for _, code := range historyLost {
		if server.HasErrorCode(code) {
			return fmt.Errorf("%w: %w", task.ErrHistoryLost, err)
		}
	}
	for _, code := range noChangeStream {
		if server.HasErrorCode(code) {
			return fmt.Errorf("%w: %w", task.ErrNoChangeStream, err)
		}
	}
	return err
}

// observed reads one event; false when it carries no change (a heartbeat, a write by hand).
func (st *Stream) observed(raw bson.Raw) (task.Observed, bool) {
	event := bsoncore.Document(raw)
	var fields bsoncore.Document
	if d, ok := event.Lookup("updateDescription", "updatedFields").DocumentOK(); ok {
		fields = d
	} else if d, ok := event.Lookup("fullDocument").DocumentOK(); ok {
		fields = d
	}
	written := text(fields.Lookup("change"))
	if written == "" {
		return task.Observed{}, false
	}
	o := task.Observed{ID: text(event.Lookup("documentKey", "_id"))}
	var err error
	if o.Change, err = task.ParseChange(written); err != nil {
		st.store.log.Error("a change cannot be read", "task_id", o.ID, "err", err)
		return task.Observed{}, false
	}
	// A replacement carries the whole document, also what an earlier change left there.
	if o.Change.To == task.Success {
		if result := text(fields.Lookup("result")); result != "" {
			o.Result = json.RawMessage(result)
		}
	}
	if failure := text(fields.Lookup("lastError")); failure != "" && fails(o.Change) {
		o.Error = decodeError(failure)
	}
	return o, true
}

// fails reports whether a change is one that writes an error.
func fails(c task.Change) bool {
	switch c.Reason {
	case task.ReasonRetry, task.ReasonExhausted, task.ReasonNonRetryable, task.ReasonRejectedResult, task.ReasonLeaseExpired,
		task.ReasonTimeout, task.ReasonWorkerLost:
		return true
	}
	return false
}
