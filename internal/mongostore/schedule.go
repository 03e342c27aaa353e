package mongostore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

const schedulesCollection = "schedules"

// scheduleDocument is a stored schedule. The template is JSON text, so that it comes back byte for byte.
type scheduleDocument struct {
	Name     string    `bson:"_id"`
	Cron     string    `bson:"cron"`
	Zone     string    `bson:"zone,omitempty"`
	Misfire  string    `bson:"misfire,omitempty"`
	CatchUp  int64     `bson:"catchUpMs,omitempty"`
	CatchMax int       `bson:"catchUpMax,omitempty"`
	Overlap  string    `bson:"overlap,omitempty"`
	TaskType string    `bson:"taskType"`
	Template string    `bson:"template,omitempty"`
	Anchor   time.Time `bson:"anchorAt,omitempty"`
	NextAt   time.Time `bson:"nextAt,omitempty"`
	LastAt   time.Time `bson:"lastAt,omitempty"`
	Broken   string    `bson:"broken,omitempty"`
	Revision int64     `bson:"rev"`
}

func (d scheduleDocument) schedule() task.Schedule {
	s := task.Schedule{Name: d.Name, Cron: d.Cron, Zone: d.Zone, Misfire: d.Misfire,
		CatchUp: time.Duration(d.CatchUp) * time.Millisecond, CatchUpMax: d.CatchMax, Overlap: d.Overlap, TaskType: d.TaskType,
		Anchor: utc(d.Anchor), NextAt: utc(d.NextAt), LastAt: utc(d.LastAt), Broken: d.Broken, Revision: d.Revision}
	if d.Template != "" {
		s.Template = json.RawMessage(d.Template)
	}
	return s
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}

func (s *Store) schedules() *mongo.Collection { return s.hotDB.Collection(schedulesCollection) }

// Schedule returns one schedule; [task.ErrNotFound].
func (s *Store) Schedule(ctx context.Context, name string) (task.Schedule, error) {
	var d scheduleDocument
	err := s.schedules().FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return task.Schedule{}, task.ErrNotFound
	}
	if err != nil {
		return task.Schedule{}, fmt.Errorf("read schedule: %w", err)
	}
	return d.schedule(), nil
}

// Schedules returns schedules in the order of their names, behind after: at most limit.
func (s *Store) Schedules(ctx context.Context, after string, limit int) ([]task.Schedule, error) {
	found, err := s.findSchedules(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}}}}, "_id", limit)
	if err != nil {
		return nil, fmt.Errorf("read schedules: %w", err)
	}
	return found, nil
}

// DueSchedules returns schedules with NextAt up to until, the earliest first: at most limit. Broken ones have no NextAt.
func (s *Store) DueSchedules(ctx context.Context, until time.Time, limit int) ([]task.Schedule, error) {
	found, err := s.findSchedules(ctx, bson.D{{Key: "nextAt", Value: bson.D{{Key: "$lte", Value: until}}}}, "nextAt", limit)
	if err != nil {
		return nil, fmt.Errorf("read due schedules: %w", err)
	}
	return found, nil
}

func (s *Store) findSchedules(ctx context.Context, filter bson.D, order string, limit int) ([]task.Schedule, error) {
	cursor, err := s.schedules().Find(ctx, filter, options.Find().SetSort(ascending(order)).SetLimit(int64(limit)))
	if err != nil {
		return nil, err
	}
	var docs []scheduleDocument
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, err
	}
	found := make([]task.Schedule, len(docs))
	for i, d := range docs {
		found[i] = d.schedule()
	}
	return found, nil
}

// PutSchedule stores a schedule if it is still as it was read, which its Revision tells; 0: there was none. False: it has changed
// meanwhile, or has been made or removed by another.
func (s *Store) PutSchedule(ctx context.Context, in task.Schedule) (bool, error) {
	d := scheduleDocument{Name: in.Name, Cron: in.Cron, Zone: in.Zone, Misfire: in.Misfire,
		CatchUp: in.CatchUp.Milliseconds(), CatchMax: in.CatchUpMax, Overlap: in.Overlap, TaskType: in.TaskType,
		Template: string(in.Template), Anchor: in.Anchor, NextAt: in.NextAt, LastAt: in.LastAt, Broken: in.Broken, Revision: in.Revision + 1}
	if in.Revision == 0 {
		_, err := s.schedules().InsertOne(ctx, d) // the unique _id keeps two creators apart
		if mongo.IsDuplicateKeyError(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("store schedule: %w", err)
		}
		return true, nil
	}
	// The guard keeps an edit from undoing another one, or a firing, that it has not seen.
	result, err := s.schedules().ReplaceOne(ctx, bson.D{{Key: "_id", Value: in.Name}, {Key: "rev", Value: in.Revision}}, d)
	if err != nil {
		return false, fmt.Errorf("store schedule: %w", err)
	}
	return result.MatchedCount == 1, nil
}

// DeleteSchedule removes a schedule and tells whether it was there.
func (s *Store) DeleteSchedule(ctx context.Context, name string) (bool, error) {
	result, err := s.schedules().DeleteOne(ctx, bson.D{{Key: "_id", Value: name}})
	if err != nil {
		return false, fmt.Errorf("delete schedule: %w", err)
	}
	return result.DeletedCount == 1, nil
}

// Advance moves schedules on, each only if it still is as it was read, and returns how many moved.
func (s *Store) Advance(ctx context.Context, moves []task.Advance) (int, error) {
	moved := 0
	for len(moves) > 0 {
		part := moves[:min(len(moves), maxBatch)]
		moves = moves[len(part):]
		models := make([]mongo.WriteModel, len(part))
		for i, m := range part {
			set, unset := bson.D{{Key: "rev", Value: m.Revision + 1}}, bson.D{}
			keep := func(field string, value any, present bool) {
				if present {
					set = append(set, bson.E{Key: field, Value: value})
				} else {
					unset = append(unset, bson.E{Key: field, Value: ""})
				}
			}
			keep("nextAt", m.To, !m.To.IsZero())
			keep("broken", m.Broken, m.Broken != "")
			if !m.LastAt.IsZero() {
				set = append(set, bson.E{Key: "lastAt", Value: m.LastAt})
			}
			update := bson.D{{Key: "$set", Value: set}}
			if len(unset) > 0 {
				update = append(update, bson.E{Key: "$unset", Value: unset})
			}
			// The guard leaves alone what was edited or moved on since it was read (revision and position).
			models[i] = mongo.NewUpdateOneModel().SetUpdate(update).SetFilter(bson.D{
				{Key: "_id", Value: m.Name}, {Key: "rev", Value: m.Revision}, {Key: "nextAt", Value: m.From}})
		}
		// By the client for long commands: a thousand updates may take longer than what a lease can wait for.
		result, err := s.bulkDB.Collection(schedulesCollection).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
		if err != nil {
			return moved, fmt.Errorf("move schedules on: %w", err)
		}
		moved += int(result.ModifiedCount)
	}
	return moved, nil
}
