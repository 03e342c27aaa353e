package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// What Mongo.Store answers.
const (
	StoreMongoDB    = "mongodb"    // a MongoDB server
	StoreSecantusDB = "secantusdb" // the stand-in used where no mongod is installed
)

// ErrExternal answers a request that needs a server of our own while AX_MONGO_URI names one that is not ours.
var ErrExternal = errors.New("the database named by AX_MONGO_URI is not ours to start, stop or change")

// startTimeout bounds one start. A start after a kill reads the log back: about a minute for a million documents.
const startTimeout = 3 * time.Minute

// stopGrace is how long a server may take to end by itself before it is killed.
const stopGrace = 20 * time.Second

// MongoOptions says how the database is run. The zero value is right for most uses.
type MongoOptions struct {
	// Dir holds the data and is kept. Empty: a temporary folder that Stop deletes.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one. It means nothing where AX_MONGO_URI names the database.
	Port int
	// Log gets one line that names the database chosen and why, and the progress of an installation. Nil: silent.
	Log io.Writer
	// AllowBuild permits a build of some minutes when no database is at hand and the tools for it are.
	AllowBuild bool
	// Standalone runs a server without change streams and transactions.
	Standalone bool
	// FaketimeFile, when set, is a file that shifts the server's wall clock while it runs (write "+3600" for an hour
	// ahead). It needs the system package faketime and is slow: for tests of correctness only.
	FaketimeFile string
	// ExtraArgs stand last on the server's command line. What is a flag of one database is none of another: see Mongo.Store.
	ExtraArgs []string
}

// Mongo is a running database.
type Mongo struct {
	opts    MongoOptions
	engine  engine
	dir     string
	scratch *scratch // nil when the folder is the caller's
	env     []string

	mu      sync.Mutex
	child   *child // nil when external or stopped
	port    int
	uri     string
	stopped bool
}

// StartMongo starts a database, or takes the one AX_MONGO_URI names, and returns when it answers. It looks for, in
// this order: AX_MONGO_URI, mongod on PATH, the cached fast stand-in, a build of it (AllowBuild), the slow stand-in as
// a Python wheel. The server dies with this process; Stop ends it in order.
func StartMongo(ctx context.Context, opts MongoOptions) (*Mongo, error) {
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if uri := os.Getenv("AX_MONGO_URI"); uri != "" {
		if opts.Standalone || opts.FaketimeFile != "" || len(opts.ExtraArgs) > 0 {
			return nil, fmt.Errorf("start a database: %w", ErrExternal)
		}
		fmt.Fprintf(opts.Log, "database: %s (AX_MONGO_URI is set)\n", redact(uri))
		return &Mongo{opts: opts, uri: uri}, nil
	}

	var env []string
	if opts.FaketimeFile != "" {
		var err error
		if env, err = faketimeEnv(opts.FaketimeFile); err != nil {
			return nil, fmt.Errorf("start a database: %w", err)
		}
	}
	e, err := chooseEngine(ctx, opts.AllowBuild, opts.Log)
	if err != nil {
		return nil, fmt.Errorf("start a database: %w", err)
	}
	fmt.Fprintf(opts.Log, "database: %s (%s)\n", e.name, e.why)

	m := &Mongo{opts: opts, engine: e, dir: opts.Dir, env: env, port: opts.Port}
	if m.dir == "" {
		if m.scratch, err = newScratch(); err != nil {
			return nil, fmt.Errorf("start a database: %w", err)
		}
		m.dir = m.scratch.path
	}
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a database: %w", err), m.Stop())
	}
	return m, nil
}

// URI is the connection string.
func (m *Mongo) URI() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.uri
}

// Store names the kind of database: StoreMongoDB or StoreSecantusDB. A server named by AX_MONGO_URI is asked.
func (m *Mongo) Store() string {
	if !m.External() {
		return m.engine.store
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return storeOf(ctx, m.URI())
}

// Engine names the program that runs, for people: "mongod", "secantusd-rs", "secantusd-py"; empty for one that AX_MONGO_URI names.
func (m *Mongo) Engine() string { return m.engine.name }

// Slow tells that the slow stand-in runs: about a hundred tasks a second.
func (m *Mongo) Slow() bool { return m.engine.name == wheelName }

// External tells that AX_MONGO_URI named the database: Stop does nothing, Kill and Restart answer ErrExternal.
func (m *Mongo) External() bool { return m.engine.name == "" }

// PID is the server's process id, 0 when it is external or not running.
func (m *Mongo) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.child == nil || !m.child.running() {
		return 0
	}
	return m.child.cmd.Process.Pid
}

// Port is where the server listens on 127.0.0.1; 0 for one that AX_MONGO_URI names.
func (m *Mongo) Port() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.port
}

// Done is closed once the process is gone that runs now. It is nil, and so never closed, when there is none of ours.
func (m *Mongo) Done() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.child == nil {
		return nil
	}
	return m.child.done
}

// ExitError says how the process ended: nil after a clean exit, or where there is none of ours. It waits for the end.
func (m *Mongo) ExitError() error {
	m.mu.Lock()
	c := m.child
	m.mu.Unlock()
	if c == nil {
		return nil
	}
	<-c.done
	return c.err
}

// Output is the newest output of the process, for error messages.
func (m *Mongo) Output() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.child == nil {
		return "(none)"
	}
	return m.child.out.String()
}

// answerTimeout is how long a database that AX_MONGO_URI names may take to answer at a start.
const answerTimeout = 5 * time.Second

// Answers asks a database that AX_MONGO_URI names whether it is there, for a few seconds. The error says what to do: a terminal often
// keeps the address of a local database that is gone. One of ours has answered already.
func (m *Mongo) Answers(ctx context.Context) error {
	if !m.External() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err := withClient(m.URI(), func(c *mongo.Client) error { return c.Ping(ctx, nil) })
	if err != nil {
		return fmt.Errorf("AX_MONGO_URI names the database %s, which does not answer. Start it; or `unset AX_MONGO_URI`, and a local one is started: %w",
			redact(m.URI()), err)
	}
	return nil
}

// Stop ends the server and deletes its data unless the folder is the caller's. It may be called twice.
func (m *Mongo) Stop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.External() || m.stopped {
		return nil
	}
	m.stopped = true
	grace := stopGrace
	if m.scratch != nil {
		grace = 0 // nothing of it is kept, so nothing needs to be flushed
	}
	err := m.end(grace)
	if m.scratch != nil {
		err = errors.Join(err, m.scratch.remove())
	}
	if err != nil {
		return fmt.Errorf("stop the database: %w", err)
	}
	return nil
}

// Kill ends the server with SIGKILL and keeps its data, for Restart.
func (m *Mongo) Kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.External() {
		return fmt.Errorf("kill the database: %w", ErrExternal)
	}
	if err := m.end(0); err != nil {
		return fmt.Errorf("kill the database: %w", err)
	}
	return nil
}

// Restart starts the server again on the same folder and port, stopping it first when it runs.
func (m *Mongo) Restart(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.External() {
		return fmt.Errorf("restart the database: %w", ErrExternal)
	}
	if m.stopped {
		return errors.New("restart the database: it was stopped for good")
	}
	if err := m.end(stopGrace); err != nil {
		return fmt.Errorf("restart the database: %w", err)
	}
	if err := m.start(ctx); err != nil {
		return fmt.Errorf("restart the database: %w", err)
	}
	return nil
}

// end stops the process if there is one. The caller holds mu.
func (m *Mongo) end(grace time.Duration) error {
	if m.child == nil {
		return nil
	}
	if err := m.child.stop(grace); err != nil {
		return err
	}
	m.child = nil
	return nil
}

// start runs the server until it answers. The caller holds mu, or is the only one to know m.
func (m *Mongo) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := m.engine.prepare(m.dir); err != nil {
		return err
	}
	port := m.port
	if port == 0 && m.engine.ownPort {
		var err error
		if port, err = freePort(); err != nil {
			return err
		}
	}
	argv := append([]string{m.engine.binary}, m.engine.args(m.dir, port, m.opts.Standalone)...)
	argv = append(argv, m.opts.ExtraArgs...)
	c, err := startChild(m.engine.name, argv, m.env)
	if err != nil {
		return err
	}
	m.child = c
	line, err := c.waitOutput(ctx, m.engine.ready.MatchString)
	if err != nil {
		return errors.Join(err, m.end(0))
	}
	if found := m.engine.ready.FindStringSubmatch(line); len(found) > 1 {
		if port, err = strconv.Atoi(found[1]); err != nil {
			return errors.Join(fmt.Errorf("read the port from %q: %w", line, err), m.end(0))
		}
	}
	uri := fmt.Sprintf("mongodb://127.0.0.1:%d/?directConnection=true", port)
	if err := awaitPrimary(ctx, uri, port); err != nil {
		return errors.Join(err, m.end(0))
	}
	m.port, m.uri = port, uri
	return nil
}

// redact hides the password of a connection string.
func redact(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return "(a connection string that cannot be read)"
	}
	return u.Redacted()
}
