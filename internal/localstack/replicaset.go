package localstack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// replicaSet is the name of the one-node replica set that a local mongod forms: change streams and transactions need
// one.
const replicaSet = "ax0"

const alreadyInitialized = 23

// withClient runs fn with a client that is gone when it returns.
func withClient(uri string, fn func(*mongo.Client) error) error {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(30 * time.Second))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	err = fn(client)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, client.Disconnect(ctx))
}

// DropDatabase deletes a database and all its collections.
func DropDatabase(ctx context.Context, uri, name string) error {
	err := withClient(uri, func(c *mongo.Client) error { return c.Database(name).Drop(ctx) })
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// runCommand runs one command on the admin database.
type runCommand func(ctx context.Context, command bson.D) (bson.Raw, error)

// awaitPrimary returns when the server takes writes.
func awaitPrimary(ctx context.Context, uri string, port int) error {
	return withClient(uri, func(c *mongo.Client) error {
		admin := c.Database("admin")
		return formReplicaSet(ctx, fmt.Sprintf("127.0.0.1:%d", port), func(ctx context.Context, command bson.D) (bson.Raw, error) {
			return admin.RunCommand(ctx, command).Raw()
		})
	})
}

// formReplicaSet waits until the server takes writes. A server that was told to be part of a replica set and knows of
// none yet is told to form one of itself.
func formReplicaSet(ctx context.Context, host string, run runCommand) error {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for formed := false; ; {
		var hello struct {
			IsWritablePrimary bool   `bson:"isWritablePrimary"`
			IsReplicaSet      bool   `bson:"isreplicaset"` // set only while there is no configuration
			SetName           string `bson:"setName"`
		}
		reply, err := run(ctx, bson.D{{Key: "hello", Value: 1}})
		if err == nil {
			err = bson.Unmarshal(reply, &hello)
		}
		if err == nil && hello.IsWritablePrimary {
			return nil
		}
		if err == nil && hello.IsReplicaSet && hello.SetName == "" && !formed {
			config := bson.D{{Key: "_id", Value: replicaSet}, {Key: "members", Value: bson.A{
				bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: host}},
			}}}
			_, err := run(ctx, bson.D{{Key: "replSetInitiate", Value: config}})
			var refused mongo.CommandError
			if err != nil && (!errors.As(err, &refused) || refused.Code != alreadyInitialized) {
				return fmt.Errorf("form a one-node replica set: %w", err)
			}
			formed = true
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("the server never took writes: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// storeOf asks a server what it is. SecantusDB says so in its build information; a server that does not answer is
// taken for MongoDB.
func storeOf(ctx context.Context, uri string) string {
	store := StoreMongoDB
	_ = withClient(uri, func(c *mongo.Client) error {
		var hello struct {
			SetName string `bson:"setName"`
		}
		if err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
			return err
		}
		if hello.SetName == "secantus" {
			store = StoreSecantusDB
		}
		return nil
	})
	return store
}
