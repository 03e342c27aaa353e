// Command natsd runs NATS with JetStream in a process of its own, so that a test can kill it as a machine would.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ax-scheduler/ax/internal/localstack"
)

func main() {
	dir := flag.String("dir", "", "folder that holds the streams (kept); empty: a temporary one")
	port := flag.Int("port", 0, "port on 127.0.0.1; 0 takes a free one")
	flag.Parse()
	if err := run(*dir, *port); err != nil {
		fmt.Fprintln(os.Stderr, "natsd:", err)
		os.Exit(1)
	}
}

func run(dir string, port int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := localstack.StartNATS(ctx, localstack.NATSOptions{Dir: dir, Port: port})
	if err != nil {
		return err
	}
	defer n.Stop()
	fmt.Println("listening on", n.URL())
	<-ctx.Done()
	return nil
}
