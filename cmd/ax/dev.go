package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/localstack"
)

// devFlags say how the local system is run.
type devFlags struct {
	data, bin          string
	natsPort, httpPort int
	verbose            bool
}

const devStop = 15 * time.Second

func newDev() *cobra.Command {
	f := &devFlags{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole system on this machine, until Ctrl-C",
		Long: "dev runs NATS, a database and the five services, each service as a process of its own, as they are deployed.\n" +
			"The services' programs lie beside ax; `make build` puts them there. With --data everything is kept and found again\n" +
			"at the next start; without it, all is deleted at the end.",
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&f.data, "data", "", "folder that keeps tasks and messages; default: a temporary one that is deleted")
	cmd.Flags().IntVar(&f.natsPort, "nats-port", 4222, "port of NATS on 127.0.0.1; 0 takes a free one")
	cmd.Flags().IntVar(&f.httpPort, "http-port", 7801, "first of the ports that serve each service's /healthz, /readyz and /metrics; 0 takes free ones")
	cmd.Flags().StringVar(&f.bin, "bin", "", "folder with the services' programs; default: where ax itself lies")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "show all log lines of the services, not only warnings")
	return cmd
}

func (f *devFlags) validate() error {
	for _, port := range []struct {
		flag        string
		given, most int
	}{{"nats-port", f.natsPort, 65535}, {"http-port", f.httpPort, 65536 - len(localstack.ServiceNames)}} {
		if port.given < 0 || port.given > port.most {
			return usageError{fmt.Errorf("--%s is %d; give a port from 0 to %d", port.flag, port.given, port.most)}
		}
	}
	return nil
}

func (f *devFlags) run(ctx context.Context, out, errOut io.Writer) (err error) {
	bin, err := f.programs()
	if err != nil {
		return err
	}
	mongo, nats, err := f.servers(ctx, errOut)
	if err != nil {
		return err
	}
	defer func() {
		nats.Stop()
		err = errors.Join(err, mongo.Stop())
	}()

	level := "warn"
	if f.verbose {
		level = "info"
	}
	lines := &prefixed{out: errOut}
	opts := localstack.SystemOptions{Bin: bin, MongoURI: mongo.URI(), NATSURL: nats.URL(), Env: []string{"AX_LOG_LEVEL=info"},
		Output: func(service string) io.Writer { return lines.of(service, level) }, FirstPort: f.httpPort}
	system, err := localstack.StartSystem(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system.Stop(devStop)) }()

	fmt.Fprintf(out, "ax is running: NATS, %s and the five services. Ctrl-C ends it.\n\n", mongo.Store())
	fmt.Fprintf(out, "  export AX_NATS_URL=%s\n  export AX_MONGO_URI='%s'\n\n", nats.URL(), mongo.URI())
	for _, name := range localstack.ServiceNames {
		fmt.Fprintf(out, "  %-11s %s/readyz\n", name, system.Service(name).URL())
	}
	self := os.Args[0] // as it was typed: it need not be on the PATH
	fmt.Fprintf(out, "\nIn another terminal, with the lines above:\n  %s submit email --payload '{\"to\":\"a@example.com\"}'\n  %s watch\n", self, self)

	ended := make(chan string, len(localstack.ServiceNames))
	watchCtx, stopWatching := context.WithCancel(ctx)
	var watching sync.WaitGroup
	for _, name := range localstack.ServiceNames {
		done := system.Service(name).Done()
		watching.Go(func() {
			select {
			case <-done:
				ended <- name
			case <-watchCtx.Done():
			}
		})
	}
	defer watching.Wait()
	defer stopWatching()
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nstopping")
		return nil
	case name := <-ended:
		if ctx.Err() != nil { // Ctrl-C reaches the services as well
			return nil
		}
		return fmt.Errorf("the %s ended: %v; its last output:\n%s", name, system.Service(name).ExitError(), system.Service(name).Output())
	}
}

// programs finds the folder with the services' programs.
func (f *devFlags) programs() (string, error) {
	bin := f.bin
	if bin == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the services' programs: %w", err)
		}
		bin = filepath.Dir(self)
	}
	for _, name := range localstack.ServiceNames {
		if _, err := os.Stat(localstack.ServicePath(bin, name)); err != nil {
			return "", usageError{fmt.Errorf("there is no program %q in %s; `make build` makes all of them in dist/, and --bin names another folder", name, bin)}
		}
	}
	return bin, nil
}

func (f *devFlags) servers(ctx context.Context, log io.Writer) (*localstack.Mongo, *localstack.NATS, error) {
	var mongoDir, natsDir string
	if f.data != "" {
		mongoDir, natsDir = filepath.Join(f.data, "mongo"), filepath.Join(f.data, "nats")
		for _, dir := range []string{mongoDir, natsDir} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, nil, usageError{err}
			}
		}
	}
	mongo, err := localstack.StartMongo(ctx, localstack.MongoOptions{Dir: mongoDir, Log: log})
	if err != nil {
		if f.data != "" {
			err = fmt.Errorf("%w\nis another `ax dev` running on %s? --data takes another folder", err, f.data)
		}
		return nil, nil, err
	}
	nats, err := localstack.StartNATS(ctx, localstack.NATSOptions{Dir: natsDir, Port: f.natsPort})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%w; is another NATS running? --nats-port chooses another port", err), mongo.Stop())
	}
	return mongo, nats, nil
}
