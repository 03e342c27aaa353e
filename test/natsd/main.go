// Command natsd runs NATS with JetStream in a process of its own, so that a test can kill it as a machine would.
package main

import (
	"os"

	"github.com/ax-scheduler/ax/internal/localstack"
)

func main() { os.Exit(localstack.NATSMain(os.Args[1:])) }
