package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

const deadLettersCollection = "dead_letters"

type deadDocument struct {
	ID         string            `bson:"_id"`
	Type       string            `bson:"taskType"`
	Reason     string            `bson:"reason"`
	At         time.Time         `bson:"at"`
	Attempts   int               `bson:"attempts"`
	Failures   int               `bson:"failures"`
	Losses     int               `bson:"losses"`
	ErrorCode  string            `bson:"errorCode,omitempty"`
	LastError  string            `bson:"lastError,omitempty"`
	Errors     []deadError       `bson:"errors"`
	BizKey     string            `bson:"bizKey,omitempty"`
	Labels     map[string]string `bson:"labels,omitempty"`
	WorkflowID string            `bson:"workflowId,omitempty"`
}

type deadError struct {
	Seq     int64     `bson:"seq"`
	At      time.Time `bson:"at"`
	Reason  string    `bson:"reason"`
	By      string    `bson:"by"`
	Attempt int       `bson:"attempt"`
	Error   string    `bson:"error"`
}

// UpsertDeadLetters writes the dead letters that are not there yet and leaves the others as they are: the same event, met again,
// must not undo what a person did with a letter.
func (s *Store) UpsertDeadLetters(ctx context.Context, dead []task.DeadTask) error {
	var docs []any
	size := 0
	flush := func() error {
		_, err := s.bulkDB.Collection(deadLettersCollection).InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
		docs, size = nil, 0
		return otherThanDuplicates(err)
	}
	for i, d := range dead {
		doc, err := bson.Marshal(deadDocumentOf(d))
		if err != nil {
			return fmt.Errorf("store dead letters: %w", err)
		}
		docs, size = append(docs, bson.Raw(doc)), size+len(doc)
		if len(docs) == maxBatch || size >= maxBatchBytes || i == len(dead)-1 {
			if err := flush(); err != nil {
				return fmt.Errorf("store dead letters: %w", err)
			}
		}
	}
	return nil
}

// otherThanDuplicates drops from a bulk's error those documents that were there already.
func otherThanDuplicates(err error) error {
	var refused mongo.BulkWriteException
	if err == nil || !errors.As(err, &refused) || refused.WriteConcernError != nil {
		return err
	}
	for _, e := range refused.WriteErrors {
		if e.Code != duplicateKey {
			return err
		}
	}
	return nil
}

func deadDocumentOf(d task.DeadTask) deadDocument {
	doc := deadDocument{ID: d.ID, Type: d.Type, Reason: string(d.Reason), At: d.At, Attempts: d.Attempts, Failures: d.Failures,
		Losses: d.Losses, BizKey: d.BizKey, Labels: d.Labels, WorkflowID: d.WorkflowID, Errors: []deadError{}}
	if d.LastError != nil {
		doc.LastError, doc.ErrorCode = errorText(d.LastError), d.LastError.Code
	}
	for _, e := range d.Errors {
		entry := deadError{Seq: e.Seq, At: e.At, Reason: string(e.Reason), By: e.By, Attempt: e.Attempt}
		if e.Error != nil {
			entry.Error = errorText(e.Error)
		}
		doc.Errors = append(doc.Errors, entry)
	}
	return doc
}

// DeadLetter returns one dead letter by its task's id; [task.ErrNotFound].
func (s *Store) DeadLetter(ctx context.Context, id string) (task.DeadTask, error) {
	var d deadDocument
	err := s.bulkDB.Collection(deadLettersCollection).FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return task.DeadTask{}, task.ErrNotFound
	}
	if err != nil {
		return task.DeadTask{}, fmt.Errorf("read dead letter: %w", err)
	}
	out := task.DeadTask{ID: d.ID, Type: d.Type, Reason: task.Reason(d.Reason), At: utc(d.At), Attempts: d.Attempts, Failures: d.Failures,
		Losses: d.Losses, LastError: decodeError(d.LastError), BizKey: d.BizKey, Labels: d.Labels, WorkflowID: d.WorkflowID}
	for _, e := range d.Errors {
		out.Errors = append(out.Errors, task.Entry{Seq: e.Seq, At: utc(e.At), From: task.Running, Reason: task.Reason(e.Reason), By: e.By,
			Attempt: e.Attempt, Error: decodeError(e.Error)})
	}
	return out, nil
}

// CountDeadLetters counts the dead letters. It is for people: its cost grows with their number.
func (s *Store) CountDeadLetters(ctx context.Context) (int64, error) {
	n, err := s.bulkDB.Collection(deadLettersCollection).CountDocuments(ctx, bson.D{})
	if err != nil {
		return 0, fmt.Errorf("count dead letters: %w", err)
	}
	return n, nil
}
