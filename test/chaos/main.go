// Command chaos runs the whole of ax as processes, two of every service, breaks what can be broken by a script made from a seed,
// and then holds what ax says against the ledgers of the handlers. It exits with 1 when a promise was broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ax-scheduler/ax/test/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	seed := flags.Uint64("seed", 1, "of the faults and the tasks: the same one gives the same script")
	minutes := flags.Float64("minutes", 2, "how long faults are injected; the wait for the last tasks comes on top")
	bin := flags.String("bin", "", "folder with programs whose clocks can be shifted, kept for the next run; empty: a temporary one")
	only := flags.Bool("script", false, "print the script and do nothing")
	keep := flags.String("keep", "", "folder that keeps the ledgers and the output of the processes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s := newScript(*seed, time.Duration(*minutes*float64(time.Minute)))
	s.print(os.Stdout)
	if *only {
		return nil
	}
	dir, err := os.MkdirTemp("", "ax-chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if *bin == "" {
		*bin = filepath.Join(dir, "bin")
	}
	if *bin, err = filepath.Abs(*bin); err != nil {
		return err
	}
	if err := programs.Shifted(".", *bin, programList...); err != nil {
		return err
	}
	if *keep == "" {
		*keep = dir
	} else if err := os.MkdirAll(*keep, 0o755); err != nil {
		return err
	} else if files, err := os.ReadDir(*keep); err != nil || len(files) > 0 {
		return errors.Join(err, fmt.Errorf("%s is not empty: the ledgers of another run would count as this one's", *keep))
	}
	r, err := rehearse(ctx, *bin, *keep, s, os.Stdout)
	if err != nil {
		return err
	}
	r.print(os.Stdout)
	if len(r.violations) > 0 {
		return fmt.Errorf("%d promises broken", len(r.violations))
	}
	return nil
}

// rehearse plays a script against a system of its own and judges it. The error says that there was nothing to judge.
func rehearse(ctx context.Context, bin, dir string, s script, log io.Writer) (_ *report, err error) {
	starting, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	w, err := startWorld(starting, bin, dir, s, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()

	l := &load{client: w.client, seed: s.seed, accepts: w.remember}
	loading, enough := context.WithCancel(ctx)
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		l.run(loading)
	}()
	began := time.Now()
	counts, err := w.play(ctx, s)
	if err == nil {
		err = wait(ctx, time.Until(began.Add(s.lasts)))
	}
	enough()
	<-loaded
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "faults are over after %v, %d tasks are accepted, waiting for quiet\n", time.Since(began).Round(time.Second), len(l.accepted))
	over := time.Now()
	resting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := l.rest(resting); err != nil {
		return nil, err
	}
	e, err := w.settle(ctx, l.accepted)
	if err != nil {
		return nil, err
	}
	r := newReport(e, counts, s)
	r.quiet = time.Since(over)
	w.audit(ctx, "at the end")
	r.audit, r.violations = w.said, append(append(r.violations, l.refused...), w.found...)
	return r, nil
}
