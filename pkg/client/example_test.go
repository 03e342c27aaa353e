package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

type Email struct {
	To string `json:"to"`
}

// Submit a task and wait for its end.
func ExampleClient_Submit() {
	c, err := client.Connect(client.Options{NATSURL: "nats://127.0.0.1:4222"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	id, err := c.Submit(ctx, client.NewTask("email", Email{To: "a@example.com"}, client.ID("order-7"), client.Timeout(30*time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	task, err := c.Wait(ctx, id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(task.State, string(task.Result))
}

// Store a task in the transaction that makes it necessary: there are both, or neither.
func ExampleClient_InsertTx() {
	var (
		c  *client.Client  // connected with Options.MongoURI
		db *mongo.Database // the one that ax uses, by the program's own client
	)
	ctx := context.Background()
	session, err := db.Client().StartSession()
	if err != nil {
		log.Fatal(err)
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		if _, err := db.Collection("orders").InsertOne(ctx, bson.D{{Key: "_id", Value: 7}}); err != nil {
			return nil, err
		}
		return c.InsertTx(ctx, db, client.NewTask("email", Email{To: "a@example.com"}, client.ID("order-7")))
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Bad input is refused before it is sent, with the field, its value and what is allowed.
func ExampleTask_Check() {
	err := client.NewTask("email", nil, client.Priority(10)).Check()
	if refused, ok := errors.AsType[*events.Error](err); ok {
		fmt.Println(refused.Field, refused.Value, "-", refused.Allowed)
	}
	// Output: priority 10 - a whole number from 0 (most urgent) to 9
}
