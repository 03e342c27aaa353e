// Command quickstart submits a task, runs it in a worker of its own, and hears what becomes of it. It needs a running ax, such
// as `ax dev`, whose addresses it takes from AX_MONGO_URI and AX_NATS_URL.
//
// What stands below is shown in the README as it is.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
	"github.com/ax-scheduler/ax/pkg/worker"
)

type Email struct{ To string }
type Receipt struct{ Number string }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	slog.SetLogLoggerLevel(slog.LevelWarn) // leave out the worker's notes on its start and stop

	// A worker: a handler for each type of task.
	options, err := worker.FromEnv()
	check(err)
	w, err := worker.New(options)
	check(err)
	worker.Handle(w, "email", func(ctx context.Context, mail Email) (Receipt, error) {
		fmt.Println("sending an email to", mail.To)
		return Receipt{Number: "r-1"}, nil
	})
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()

	// A subscriber: every change of our email, in order. Other emails may be there: of an earlier run, or from the command line.
	c, err := client.Connect(client.Options{NATSURL: options.NATSURL})
	check(err)
	defer c.Close()
	email := client.NewTask("email", Email{To: "a@example.com"})
	_, err = c.Subscribe(ctx, events.SubscribeOptions{Types: []string{"email"}}, func(_ context.Context, e events.Event) error {
		if e.ID != email.ID() {
			return nil
		}
		fmt.Printf("event %d: %s, because %s %s\n", e.Seq, e.State, e.Reason, e.Result)
		if e.State == "success" || e.State == "failed" || e.State == "cancelled" {
			stop()
		}
		return nil
	})
	check(err)

	// Once Submit returns, the task is stored and will run, whatever is killed.
	_, err = c.Submit(ctx, email)
	check(err)
	check(<-ended)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
