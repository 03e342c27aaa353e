package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/localstack"
)

const (
	mostRestarts  = 5 // of one program within restartWindow, after which something is wrong that a restart does not mend
	restartWindow = time.Minute
	firstPause    = 250 * time.Millisecond // before a program is started again; doubled each time
	badSettings   = 2                      // exit code of a service that a restart cannot help
)

// program is a process that must not end by itself.
type program struct {
	name   string
	done   func() <-chan struct{} // closed once the process is gone that runs now
	exit   func() error           // how it ended
	output func() string          // the newest
	again  func(ctx context.Context) error
}

// supervise starts programs again that end by themselves, and says so in a line each, until ctx ends or it gives up on one of them:
// that is the error. What it started is running or gone when it returns, and nobody else may start or stop it meanwhile.
func supervise(ctx context.Context, out io.Writer, programs []program) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(programs))
	lines := &sync.Mutex{}
	say := func(format string, args ...any) {
		lines.Lock()
		defer lines.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	var all sync.WaitGroup
	for i, p := range programs {
		all.Go(func() {
			if errs[i] = p.keep(ctx, say); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// keep is supervise for one program.
func (p program) keep(ctx context.Context, say func(string, ...any)) error {
	var restarts []time.Time // those of the last restartWindow
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.done():
		}
		for {
			if ctx.Err() != nil { // Ctrl-C may reach the programs as well
				return nil
			}
			for len(restarts) > 0 && time.Since(restarts[0]) > restartWindow {
				restarts = restarts[1:]
			}
			exit, isExit := errors.AsType[*exec.ExitError](p.exit())
			switch {
			case isExit && exit.ExitCode() == badSettings:
				return fmt.Errorf("the %s does not take its settings; its last output:\n%s", p.name, p.output())
			case len(restarts) == mostRestarts:
				return fmt.Errorf("the %s has ended again, after %d restarts within a minute: %s; its last output:\n%s", p.name, mostRestarts, exitText(p.exit()), p.output())
			}
			pause := firstPause << len(restarts)
			pause = pause/2 + rand.N(pause)
			say("the %s ended (%s); it is started again in %v", p.name, exitText(p.exit()), pause.Round(10*time.Millisecond))
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-timer.C:
			}
			restarts = append(restarts, time.Now())
			if err := p.again(ctx); err == nil {
				say("the %s runs again", p.name)
				break
			}
		}
	}
}

// serviceProgram is a service of the local system.
func serviceProgram(s *localstack.Service) program {
	return program{
		name: s.Name(), done: s.Done, exit: s.ExitError, output: s.Output,
		again: func(ctx context.Context) error {
			err := s.Start(ctx)
			if err != nil { // it may hang
				err = errors.Join(err, s.Kill())
			}
			return err
		},
	}
}

// databaseProgram is the database, where it is a process of this one.
func databaseProgram(m *localstack.Mongo) program {
	var failed error // why it could not be started again
	return program{
		name: "database", done: m.Done, output: m.Output,
		exit: func() error {
			if failed != nil {
				return failed
			}
			return m.ExitError()
		},
		again: func(ctx context.Context) error {
			failed = m.Restart(ctx)
			return failed
		},
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}
