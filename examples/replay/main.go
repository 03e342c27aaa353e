// Command replay runs ax on recorded production traffic, kills a worker in the middle, and accounts for every task: five
// services and two workers as processes of their own, a slice of the Azure Functions trace compressed into less than a minute.
//
// What it counts comes from three places that are checked against each other: the ledgers that the handlers themselves write,
// the completion events that a subscriber received, and the tasks in the database. The exit code is 1 when anything is
// unaccounted for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// settings are the flags of the driver.
type settings struct {
	data, bin string
	minute    time.Duration
	share     float64
	seed      uint64
	keep      bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "replay: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == workerCommand {
		return runWorker(ctx)
	}
	var s settings
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	flags.StringVar(&s.data, "data", "examples/replay/data", "folder with the trace")
	flags.StringVar(&s.bin, "bin", "dist", "folder with the services' programs; `make build` fills it")
	flags.DurationVar(&s.minute, "minute", 1500*time.Millisecond, "how long a recorded minute takes in the replay")
	flags.Float64Var(&s.share, "share", 0, "part of the invocations that are replayed, 0 to 1; 0 chooses by what the database can do")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the arrivals")
	flags.BoolVar(&s.keep, "keep", false, "keep the ledgers and logs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.minute <= 0 || s.share < 0 || s.share > 1 {
		return errors.New("give --minute a positive duration and --share a number from 0 to 1")
	}
	dir, err := os.MkdirTemp("", "ax-replay-")
	if err != nil {
		return err
	}
	if s.keep {
		fmt.Println("ledgers and logs are kept in", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	if s.bin, err = filepath.Abs(s.bin); err != nil {
		return err
	}
	if s.data, err = filepath.Abs(s.data); err != nil {
		return err
	}
	d := &driver{settings: s, dir: dir}
	return d.run(ctx)
}
