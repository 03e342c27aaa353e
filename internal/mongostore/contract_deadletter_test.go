package mongostore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/task"
)

func deadTask(id string) task.DeadTask {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8_000_000, time.UTC)
	first := &task.Error{Message: "$no such host", Code: "dns", Cause: task.ReasonError, Attempt: 1}
	last := &task.Error{Message: "refused", Code: "smtp_550", Cause: task.ReasonError, Attempt: 2}
	return task.DeadTask{ID: id, Type: "email", Reason: task.ReasonExhausted, At: at, Attempts: 3, Failures: 2, Losses: 1, LastError: last,
		Errors: []task.Entry{
			{Seq: 3, At: at.Add(-time.Minute), From: task.Running, Reason: task.ReasonRetry, By: "worker/w1", Attempt: 1, Error: first},
			{Seq: 7, At: at, From: task.Running, Reason: task.ReasonExhausted, By: "worker/w2", Attempt: 2, Error: last},
		},
		BizKey: "order|7", Labels: map[string]string{"tenant": "$a"}, WorkflowID: "wf"}
}

func deadLetter(t *testing.T, s *Store, id string) task.DeadTask {
	t.Helper()
	d, err := s.DeadLetter(t.Context(), id)
	require.NoError(t, err)
	return d
}

func countDead(t *testing.T, s *Store) int64 {
	t.Helper()
	n, err := s.CountDeadLetters(t.Context())
	require.NoError(t, err)
	return n
}

func TestDeadLetterIsKeptWhole(t *testing.T) {
	s := openStore(t)
	bare := task.DeadTask{ID: "bare", Type: "sms", Reason: task.ReasonExpired, At: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	require.NoError(t, s.UpsertDeadLetters(t.Context(), []task.DeadTask{deadTask("whole"), bare}))
	require.Equal(t, deadTask("whole"), deadLetter(t, s, "whole"))
	require.Equal(t, bare, deadLetter(t, s, "bare"))
	_, err := s.DeadLetter(t.Context(), "none")
	require.ErrorIs(t, err, task.ErrNotFound)
}

// The same event met again neither makes a second letter nor undoes what became of the first; new ones among old ones are stored.
func TestDeadLettersAreWrittenOnce(t *testing.T) {
	s := openStore(t)
	require.NoError(t, s.UpsertDeadLetters(t.Context(), nil))
	require.Zero(t, countDead(t, s))
	require.NoError(t, s.UpsertDeadLetters(t.Context(), []task.DeadTask{deadTask("a"), deadTask("b")}))
	patchIn(t, s, deadLettersCollection, "a", bson.D{{Key: "resolvedBy", Value: "ann"}})
	var touched bson.Raw
	find := func() (raw bson.Raw) {
		require.NoError(t, s.hotDB.Collection(deadLettersCollection).FindOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}).Decode(&raw))
		return raw
	}
	touched = find()

	again := deadTask("a")
	again.Attempts = 99
	require.NoError(t, s.UpsertDeadLetters(t.Context(), []task.DeadTask{again, deadTask("c"), deadTask("b"), deadTask("c")}))
	require.Equal(t, touched, find())
	require.Equal(t, deadTask("c"), deadLetter(t, s, "c"))
	require.EqualValues(t, 3, countDead(t, s))
}

func TestManyDeadLetters(t *testing.T) {
	s := openStore(t)
	var dead []task.DeadTask
	for i := range 2500 {
		dead = append(dead, task.DeadTask{ID: fmt.Sprint("d", i), Type: "email", Reason: task.ReasonExhausted})
	}
	require.NoError(t, s.UpsertDeadLetters(t.Context(), dead[1200:1300]))
	require.NoError(t, s.UpsertDeadLetters(t.Context(), dead))
	require.EqualValues(t, 2500, countDead(t, s))
}

// However long their errors, no command is larger than a few letters over the bound, and none is left out.
func TestDeadLettersAreWrittenInBoundedCommands(t *testing.T) {
	const letter = 100 * 7 << 10
	sizes := &commandSizes{name: "insert"}
	s := openStore(t, func(o *Options) { o.adjust = sizes.watch })
	var dead []task.DeadTask
	for i := range 15 {
		d := deadTask(fmt.Sprint("d", i))
		d.Errors = nil
		for seq := range int64(100) {
			d.Errors = append(d.Errors, task.Entry{Seq: seq, From: task.Running, Reason: task.ReasonRetry, Attempt: 1,
				Error: &task.Error{Message: strings.Repeat("x", 7<<10), Cause: task.ReasonError}})
		}
		dead = append(dead, d)
	}
	sizes.reset()
	require.NoError(t, s.UpsertDeadLetters(t.Context(), dead))
	require.EqualValues(t, 15, countDead(t, s))
	require.Len(t, deadLetter(t, s, "d14").Errors, 100)
	require.Greater(t, sizes.count(), 1)
	require.Less(t, sizes.largest(), maxBatchBytes+2*letter)
	require.Less(t, sizes.count(), 15, "and they are sent together")
}

// Only "it is there already" may pass for success: the notifier saves its place when this says that all are stored.
func TestDeadLetterFailuresAreNotDuplicates(t *testing.T) {
	there := mongo.BulkWriteError{WriteError: mongo.WriteError{Code: duplicateKey}}
	refused := mongo.BulkWriteError{WriteError: mongo.WriteError{Code: 121}}
	require.NoError(t, otherThanDuplicates(nil))
	require.NoError(t, otherThanDuplicates(fmt.Errorf("insert: %w", mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{there, there}})))
	for _, err := range []error{
		mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{there, refused}},
		mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{there}, WriteConcernError: &mongo.WriteConcernError{Code: 64}},
		errors.New("broken pipe"),
	} {
		require.Equal(t, err, otherThanDuplicates(err))
	}
}
