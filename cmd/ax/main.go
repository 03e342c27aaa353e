// Command ax is the command line for users and operators of ax; `ax dev` runs the whole system on this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // what was asked for did not happen
	exitInvalid = 2 // bad input: nothing was sent or stored; or an audit that could not check everything
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program, so that tests call it like a shell does.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case unchecked(err):
		fmt.Fprintf(errOut, "ax: could not check: %v\n", err)
		return exitInvalid
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitFailed // interrupted by the user, who knows
	}
	fmt.Fprintf(errOut, "ax: %v\n", err)
	if invalid(err) {
		return exitInvalid
	}
	return exitFailed
}

// usageError is a mistake on the command line itself.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func unchecked(err error) bool {
	_, ok := errors.AsType[uncheckedError](err)
	return ok
}

func invalid(err error) bool {
	if _, ok := errors.AsType[usageError](err); ok {
		return true
	}
	refused, ok := errors.AsType[*events.Error](err)
	if !ok {
		return false
	}
	switch refused.Code {
	case events.CodeInvalid, events.CodeTooLarge, events.CodeUnsupported, events.CodeIDConflict:
		return true
	}
	return false
}
