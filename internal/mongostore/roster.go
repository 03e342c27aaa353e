package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/task"
)

const (
	workersCollection = "workers"
	maxRoster         = 10_000 // entries
)

type workerDocument struct {
	ID        string    `bson:"_id"`
	Host      string    `bson:"host"`
	PID       int       `bson:"pid"`
	Channel   string    `bson:"channel"`
	Types     []string  `bson:"types"`
	Slots     int       `bson:"slots"`
	Version   string    `bson:"version,omitempty"`
	StartedAt time.Time `bson:"startedAt"`
	SeenAt    time.Time `bson:"seenAt"`
}

// BeatWorker tells that a worker is alive, and what it is. It registers one that is not known, also one that was forgotten while
// it could not be reached. StartedAt and SeenAt are the server's time.
func (s *Store) BeatWorker(ctx context.Context, w task.WorkerInfo) error {
	update := mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "host", Value: literal(w.Host)}, {Key: "pid", Value: w.PID}, {Key: "channel", Value: literal(w.Channel)},
		{Key: "types", Value: literal(w.Types)}, {Key: "slots", Value: w.Slots}, {Key: "version", Value: literal(w.Version)},
		{Key: "startedAt", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$startedAt", "$$NOW"}}}}, {Key: "seenAt", Value: "$$NOW"},
	}}}}
	_, err := s.hotDB.Collection(workersCollection).UpdateOne(ctx, bson.D{{Key: "_id", Value: w.ID}}, update, options.UpdateOne().SetUpsert(true))
	if err != nil && !mongo.IsDuplicateKeyError(err) { // two beats made it at once: it is there
		return fmt.Errorf("beat of worker %s: %w", w.ID, err)
	}
	return nil
}

// Workers returns the registered workers in the order of their ids, at most 10,000.
func (s *Store) Workers(ctx context.Context) ([]task.WorkerInfo, error) {
	docs, err := listed[workerDocument](ctx, s.hotDB.Collection(workersCollection))
	if err != nil {
		return nil, fmt.Errorf("read workers: %w", err)
	}
	found := make([]task.WorkerInfo, len(docs))
	for i, d := range docs {
		found[i] = task.WorkerInfo{ID: d.ID, Host: d.Host, PID: d.PID, Channel: d.Channel, Types: d.Types, Slots: d.Slots,
			Version: d.Version, StartedAt: utc(d.StartedAt), SeenAt: utc(d.SeenAt)}
	}
	return found, nil
}

// RemoveWorker forgets a worker unless it has beaten since it was read, and tells whether it did. A zero SeenAt forgets it whenever
// it beat: the worker itself says that it is gone. An entry that another process of the same id wrote (host, pid) stays.
func (s *Store) RemoveWorker(ctx context.Context, read task.WorkerInfo) (bool, error) {
	// The guard leaves alone the entry of another process that was given the same id (host, pid), and of one that beats again (seenAt).
	filter := bson.D{{Key: "_id", Value: read.ID}, {Key: "host", Value: read.Host}, {Key: "pid", Value: read.PID}}
	if !read.SeenAt.IsZero() {
		filter = append(filter, bson.E{Key: "seenAt", Value: read.SeenAt})
	}
	result, err := s.hotDB.Collection(workersCollection).DeleteOne(ctx, filter)
	if err != nil {
		return false, fmt.Errorf("remove worker %s: %w", read.ID, err)
	}
	return result.DeletedCount == 1, nil
}

// Slots returns, for each task type that registered workers announced, the slots of the smallest of them.
func (s *Store) Slots(ctx context.Context) (map[string]int, error) {
	workers, err := s.Workers(ctx)
	if err != nil {
		return nil, err
	}
	smallest := make(map[string]int)
	for _, w := range workers {
		for _, t := range w.Types {
			if n, ok := smallest[t]; !ok || w.Slots < n {
				smallest[t] = w.Slots
			}
		}
	}
	return smallest, nil
}

const (
	servicesCollection = "services"
	// forgetService is how long after its last beat a service is listed: long enough to be noticed as gone.
	forgetService = time.Hour
)

type serviceDocument struct {
	ID         string    `bson:"_id"`
	Service    string    `bson:"service"`
	Host       string    `bson:"host"`
	PID        int       `bson:"pid"`
	Version    string    `bson:"version"`
	Leads      bool      `bson:"leads"`
	Conditions []string  `bson:"conditions"`
	StartedAt  time.Time `bson:"startedAt"`
	SeenAt     time.Time `bson:"seenAt"`
}

// BeatService tells that a process of a service is alive, and how it fares. StartedAt and SeenAt are the server's time.
func (s *Store) BeatService(ctx context.Context, i task.ServiceInfo) error {
	conditions := i.Conditions
	if conditions == nil {
		conditions = []string{}
	}
	update := mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "service", Value: literal(i.Service)}, {Key: "host", Value: literal(i.Host)}, {Key: "pid", Value: i.PID},
		{Key: "version", Value: literal(i.Version)}, {Key: "leads", Value: literal(i.Leads)}, {Key: "conditions", Value: literal(conditions)},
		{Key: "startedAt", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$startedAt", "$$NOW"}}}}, {Key: "seenAt", Value: "$$NOW"},
		{Key: "until", Value: later("$$NOW", forgetService.Milliseconds())},
	}}}}
	_, err := s.hotDB.Collection(servicesCollection).UpdateOne(ctx, bson.D{{Key: "_id", Value: i.ID}}, update, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("beat of service %s: %w", i.ID, err)
	}
	return nil
}

// Services returns the registered processes of services in the order of their ids, at most 10,000.
func (s *Store) Services(ctx context.Context) ([]task.ServiceInfo, error) {
	docs, err := listed[serviceDocument](ctx, s.hotDB.Collection(servicesCollection))
	if err != nil {
		return nil, fmt.Errorf("read services: %w", err)
	}
	found := make([]task.ServiceInfo, len(docs))
	for i, d := range docs {
		found[i] = task.ServiceInfo{ID: d.ID, Service: d.Service, Host: d.Host, PID: d.PID, Version: d.Version, Leads: d.Leads,
			Conditions: d.Conditions, StartedAt: utc(d.StartedAt), SeenAt: utc(d.SeenAt)}
	}
	return found, nil
}

// RemoveService forgets a process of a service: it says itself that it stops.
func (s *Store) RemoveService(ctx context.Context, id string) error {
	if _, err := s.hotDB.Collection(servicesCollection).DeleteOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
		return fmt.Errorf("remove service %s: %w", id, err)
	}
	return nil
}

// listed reads a roster in the order of its ids.
func listed[D any](ctx context.Context, from *mongo.Collection) (docs []D, err error) {
	cursor, err := from.Find(ctx, bson.D{}, options.Find().SetSort(ascending("_id")).SetLimit(maxRoster))
	if err == nil {
		err = cursor.All(ctx, &docs)
	}
	return docs, err
}
