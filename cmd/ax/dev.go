package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/localstack"
)

// devFlags say how the local system is run.
type devFlags struct {
	data, bin                     string
	natsPort, mongoPort, httpPort int
	verbose                       bool
}

const devStop = 15 * time.Second

func newDev() *cobra.Command {
	f := &devFlags{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole system on this machine, until Ctrl-C",
		Long: "dev runs NATS, a database and the five services, each service as a process of its own, as they are deployed.\n" +
			"The services' programs lie beside ax; `make build` puts them there. With --data everything is kept and found again\n" +
			"at the next start; without it, all is deleted at the end.\n" +
			"NATS runs inside of dev. A service or a database that ends by itself, or is killed, is started again.\n" +
			"Where AX_MONGO_URI is set, that database is used; `unset AX_MONGO_URI` to get a local one.",
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
	cmd.Flags().IntVar(&f.mongoPort, "mongo-port", 0, "port of the database on 127.0.0.1; default: with --data that of the last time if it is free, else a free one")
	cmd.Flags().IntVar(&f.httpPort, "http-port", 7801, "first of the ports that serve each service's /healthz, /readyz and /metrics; 0 takes free ones")
	cmd.Flags().StringVar(&f.bin, "bin", "", "folder with the services' programs; default: where ax itself lies")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "show all log lines of the services, not only warnings")
	return cmd
}

func (f *devFlags) validate() error {
	for _, port := range []struct {
		flag        string
		given, most int
	}{{"nats-port", f.natsPort, 65535}, {"mongo-port", f.mongoPort, 65535}, {"http-port", f.httpPort, 65536 - len(localstack.ServiceNames)}} {
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
	if err := f.freeHTTPPorts(); err != nil {
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

	programs := []program{databaseProgram(mongo)}
	for _, name := range localstack.ServiceNames {
		programs = append(programs, serviceProgram(system.Service(name)))
	}
	if err := supervise(ctx, errOut, programs); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nstopping")
	return nil
}

// freeHTTPPorts refuses ports that somebody has, before anything is started.
func (f *devFlags) freeHTTPPorts() error {
	if f.httpPort == 0 {
		return nil
	}
	for i, name := range localstack.ServiceNames {
		if err := portFree(f.httpPort + i); err != nil {
			return fmt.Errorf("the %s's health page: %w; is another `ax dev` running? --http-port chooses other ports, and 0 takes free ones", name, err)
		}
	}
	return nil
}

func portFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// databasePort is the port that was asked for, or that of the last time on the same data, so that addresses which a terminal keeps go
// on being right; 0 if neither.
func (f *devFlags) databasePort() (int, error) {
	if f.mongoPort != 0 {
		if err := portFree(f.mongoPort); err != nil {
			return 0, fmt.Errorf("start a database: %w; --mongo-port chooses another port", err)
		}
		return f.mongoPort, nil
	}
	if f.data == "" {
		return 0, nil
	}
	text, err := os.ReadFile(f.portFile())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find the database's last port: %w", err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || port < 1 || port > 65535 || portFree(port) != nil {
		return 0, nil
	}
	return port, nil
}

// keepPort writes the port down for [devFlags.databasePort].
func (f *devFlags) keepPort(port int) error {
	if f.data == "" || port == 0 {
		return nil
	}
	if err := os.WriteFile(f.portFile(), []byte(strconv.Itoa(port)+"\n"), 0o644); err != nil {
		return fmt.Errorf("keep the database's port: %w", err)
	}
	return nil
}

func (f *devFlags) portFile() string { return filepath.Join(f.data, "mongo-port") }

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
	port, err := f.databasePort()
	if err != nil {
		return nil, nil, err
	}
	mongo, err := localstack.StartMongo(ctx, localstack.MongoOptions{Dir: mongoDir, Port: port, Log: log})
	if err != nil {
		if f.data != "" {
			err = fmt.Errorf("%w\nis another `ax dev` running on %s? --data takes another folder", err, f.data)
		}
		return nil, nil, err
	}
	if err := errors.Join(mongo.Answers(ctx), f.keepPort(mongo.Port())); err != nil {
		return nil, nil, errors.Join(err, mongo.Stop())
	}
	nats, err := localstack.StartNATS(ctx, localstack.NATSOptions{Dir: natsDir, Port: f.natsPort})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%w; is another NATS running? --nats-port chooses another port", err), mongo.Stop())
	}
	return mongo, nats, nil
}
