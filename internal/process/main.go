package process

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"text/tabwriter"
)

// Exit codes of every service.
const (
	ExitClean  = 0 // stopped in order
	ExitFailed = 1 // failed at start, while running or while stopping, or was stopped by a second signal
	ExitConfig = 2 // bad configuration or arguments
)

// Main is the main function of a service: it loads spec from the environment, runs the service until SIGINT or SIGTERM
// and exits with one of the codes above. A second signal exits at once. `--help` prints the service's variables,
// `--variables` the same as JSON (for docs/configuration.md), `--version` its version. `health` asks the process that runs with
// the same environment whether it is healthy, and exits with 0 or 1.
func Main(service string, spec Config, setup func(ctx context.Context, p *Process) error) {
	os.Exit(mainCode(service, spec, os.Args[1:], os.Stdout, os.Stderr, setup))
}

func mainCode(service string, spec Config, args []string, stdout, stderr io.Writer, setup func(context.Context, *Process) error) int {
	if len(args) > 0 {
		switch args[0] {
		case "-h", "--help":
			help(stdout, service, spec)
			return ExitClean
		case "--version":
			fmt.Fprintln(stdout, service, Version)
			return ExitClean
		case "--variables":
			return printVariables(stdout, stderr, service, spec)
		case "health":
			return askHealth(service, spec, stdout, stderr)
		}
		fmt.Fprintf(stderr, "%s takes no arguments but health, only AX_ variables; --help lists them\n", service)
		return ExitConfig
	}
	relaxGC()
	if err := Load(service, spec); err != nil {
		fmt.Fprintln(stderr, err)
		return ExitConfig
	}

	ctx, release := untilSignal(service, stderr)
	defer release()
	// Run has logged its error.
	if err := run(ctx, service, *spec.common(), stderr, setup); err != nil {
		return ExitFailed
	}
	return ExitClean
}

// untilSignal returns a context that ends at the first SIGINT or SIGTERM. The second one exits the process at once.
func untilSignal(service string, stderr io.Writer) (ctx context.Context, release func()) {
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	released := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for n := 1; ; n++ {
			select {
			case s := <-signals:
				if n > 1 {
					fmt.Fprintf(stderr, "%s: second signal (%v), exiting at once\n", service, s)
					os.Exit(ExitFailed)
				}
				stop(fmt.Errorf("signal %v: %w", s, context.Canceled))
			case <-released:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(released)
		watching.Wait()
		stop(nil)
	}
}

func help(out io.Writer, service string, spec Config) {
	fmt.Fprintf(out, "%s is a service of ax. It takes no arguments, only these variables:\n\n", service)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, v := range Variables(service, spec) {
		given := "default " + v.Default
		switch {
		case v.Required:
			given = "required"
		case v.Default == "":
			given = "optional"
		}
		allowed := ""
		if v.Range != anyText {
			allowed = "; " + v.Range
		}
		fmt.Fprintf(w, "  %s\t%s\t%s%s\n", v.Name, given, v.Description, allowed)
	}
	_ = w.Flush() // standard output is gone when this fails
	fmt.Fprintf(out, "\n`%s health` asks the one that runs with these variables whether it is healthy: exit code %d, else %d.\n", service, ExitClean, ExitFailed)
	fmt.Fprintf(out, "Exit codes: %d stopped in order, %d failed, %d bad configuration.\n", ExitClean, ExitFailed, ExitConfig)
}

func printVariables(stdout, stderr io.Writer, service string, spec Config) int {
	out := json.NewEncoder(stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(Variables(service, spec)); err != nil {
		fmt.Fprintln(stderr, err)
		return ExitFailed
	}
	return ExitClean
}

// Version is the version of this build. A release sets it when it links (-X .../internal/process.Version=v1.2.3); else
// it is the module's version or the commit the build was made from.
var Version string

func init() {
	if Version == "" {
		Version = versionOf(debug.ReadBuildInfo())
	}
}

func versionOf(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return "devel"
}

// gcPercent lets the heap of a service grow to five times what is alive, some tens of MiB, before it is collected: at Go's default a
// service under load spends a seventh of its time on that.
const gcPercent = 400

// memoryLimit is from where on the heap is collected sooner again, so that one wave of large payloads does not make it grow five times.
const memoryLimit = 160 << 20

// relaxGC sets both, unless the operator has decided by Go's own variables.
func relaxGC() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercent)
		debug.SetMemoryLimit(memoryLimit)
	}
}
