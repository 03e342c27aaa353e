package mongostore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// DefaultDatabase is the name of the database when none is set.
const DefaultDatabase = "ax"

// Collections.
const (
	TasksCollection   = "tasks"
	ArchiveCollection = "task_archive"
)

// Limits of one command. Both bound what a batch may hold in memory and on the wire; the server's own limits are higher.
const (
	maxBatch      = 1000
	maxBatchBytes = 8 << 20
)

const (
	hotTimeout     = 10 * time.Second // claim, finish, heartbeat: a slower answer is of no use to a lease
	bulkTimeout    = 60 * time.Second // inserts and archiving
	connectTimeout = 5 * time.Second  // what Open waits for the first answer
)

// Options says how to reach the database.
type Options struct {
	URI      string
	Database string // empty: ax
	AppName  string // shown in the server's log and currentOp
	Log      *slog.Logger
	// ClaimW1 has claims and heartbeats acknowledged by the primary alone. A failover may then roll them back: the task is
	// claimed again, and the guard refuses the first execution's report. Everything else is always w:majority.
	ClaimW1 bool

	// adjust changes the options of each client; tests use it for monitors and failing connections.
	adjust func(*options.ClientOptions)
}

// Features is what the server can do.
type Features struct {
	ChangeStreams bool // false on a standalone server: dispatcher and notifier run in sweep mode
	Transactions  bool // false on a standalone server: unique keys are refused
	Version       string
}

// Store is the tasks and what belongs to them, in one database. It is safe for concurrent use.
type Store struct {
	log      *slog.Logger
	features Features
	// secantus: the server is SecantusDB, where some ways of asking cost far more than on MongoDB.
	secantus bool
	// wholeEvents: change events are read as they are. Where the server is SecantusDB any stage after $changeStream costs it more
	// than all the rest of an event (60 of 100 microseconds); MongoDB trims events nearly for free, and payloads stay where they are.
	wholeEvents bool
	clock       *clock

	// Three clients, so that an insert of 1,000 tasks or an idle change stream never keeps a heartbeat waiting for a connection.
	hot, bulk, stream *mongo.Client
	// All collections and databases below acknowledge by majority, except claims.
	hotDB, bulkDB, streamDB *mongo.Database
	tasks                   *mongo.Collection // finish, cancel, point reads
	claims                  *mongo.Collection // claim and heartbeat: majority, or w:1 by option
	bulkTasks               *mongo.Collection // insert and scans
	archive                 *mongo.Collection
}

// Open connects and asks the server what it can do and what time it is. It fails when the server does not answer within 5 s,
// so that the caller can say so and try again; a URI that can never work is an error as well.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Database == "" {
		o.Database = DefaultDatabase
	}
	if err := CheckDatabase(o.Database); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{log: o.Log.With("component", "mongostore")}
	for _, c := range []struct {
		client  **mongo.Client
		pool    uint64
		timeout time.Duration
	}{
		{&s.hot, 16, hotTimeout},
		{&s.bulk, 8, bulkTimeout},
		{&s.stream, 4, 0}, // a client timeout would end an idle change stream
	} {
		opts, err := clientOptions(o, c.pool, c.timeout)
		if err == nil {
			*c.client, err = mongo.Connect(opts)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open database: %w", err), s.disconnect(ctx))
		}
	}
	s.collections(o)
	if err := s.greet(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), s.disconnect(ctx))
	}
	s.clock.start()
	return s, nil
}

// CheckURI tells whether a connection string can work at all, without asking any database; its error shows no secret. What
// mongodb+srv asks the name service is not judged: it may answer later.
func CheckURI(uri string) error {
	_, err := clientOptions(Options{URI: uri}, 1, 0)
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return nil
	}
	return err
}

// AllowedDatabase says in words which names [CheckDatabase] takes.
const AllowedDatabase = "1 to 63 characters of A-Z a-z 0-9 _ -, other than admin, local and config"

var databaseName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

// CheckDatabase refuses the name of a database that MongoDB does not take, or keeps its own things in.
func CheckDatabase(name string) error {
	if !databaseName.MatchString(name) || slices.Contains([]string{"admin", "local", "config"}, strings.ToLower(name)) {
		return fmt.Errorf("%q is not allowed as the name of a database; give %s", name, AllowedDatabase)
	}
	return nil
}

// uriError is what the driver says of a connection string, without what it quotes of its first part: a password that is not
// escaped may be taken for a host or a port.
type uriError struct {
	uri string
	err error
}

var quoted = regexp.MustCompile(`"[^"]*"`)

func (e *uriError) Error() string {
	_, secret, _ := strings.Cut(e.uri, "://")
	secret, _, _ = strings.Cut(secret, "?")
	return quoted.ReplaceAllStringFunc(e.err.Error(), func(q string) string {
		if said := strings.Trim(q, `"`); said != "" && strings.Contains(secret, said) {
			return `"***"`
		}
		return q
	})
}

func (e *uriError) Unwrap() error { return e.err }

func clientOptions(o Options, pool uint64, timeout time.Duration) (*options.ClientOptions, error) {
	opts := options.Client().ApplyURI(o.URI)
	if err := opts.Validate(); err != nil {
		return nil, &uriError{uri: o.URI, err: err}
	}
	if opts.ReadPreference != nil && opts.ReadPreference.Mode() != readpref.PrimaryMode {
		return nil, fmt.Errorf("readPreference %s in the connection string: ax decides by what it reads, so give primary or leave it out",
			opts.ReadPreference.Mode())
	}
	opts.SetReadPreference(readpref.Primary()).SetMaxPoolSize(pool).SetMaxConnecting(4)
	if o.AppName != "" {
		opts.SetAppName(o.AppName)
	}
	if timeout > 0 {
		opts.SetTimeout(timeout)
	}
	if o.adjust != nil {
		o.adjust(opts)
	}
	return opts, nil
}

func (s *Store) collections(o Options) {
	majority := options.Database().SetWriteConcern(writeconcern.Majority())
	s.hotDB = s.hot.Database(o.Database, majority)
	s.bulkDB = s.bulk.Database(o.Database, majority)
	s.streamDB = s.stream.Database(o.Database, majority)
	s.tasks = s.hotDB.Collection(TasksCollection)
	s.claims = s.tasks
	if o.ClaimW1 {
		s.claims = s.hotDB.Collection(TasksCollection, options.Collection().SetWriteConcern(writeconcern.W1()))
	}
	s.bulkTasks = s.bulkDB.Collection(TasksCollection)
	s.archive = s.bulkDB.Collection(ArchiveCollection)
	s.clock = newClock(s.hello, s.log)
}

// greet learns the server's features and its time.
func (s *Store) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	g, err := s.hello(ctx)
	if err != nil {
		return err
	}
	s.clock.observe(g)
	if g, err = s.hello(ctx); err != nil { // the first one paid for the connection, so its bound is wide
		return err
	}
	s.clock.observe(g)
	var build struct {
		Version  string
		Secantus string `bson:"secantusVersion"`
	}
	if err := s.hotDB.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&build); err != nil {
		return fmt.Errorf("buildInfo: %w", err)
	}
	s.features = Features{ChangeStreams: g.replicated, Transactions: g.replicated, Version: build.Version}
	s.secantus = build.Secantus != ""
	s.wholeEvents = s.secantus
	return nil
}

// Features tells what the server can do, as found by Open.
func (s *Store) Features() Features { return s.features }

// Ping asks the server for an answer; nil means that it serves reads and that its time is known.
func (s *Store) Ping(ctx context.Context) error {
	if _, _, err := s.ServerTime(ctx); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	_, _, err := s.Now()
	return err
}

// Close ends background work and closes all connections. Streams must be closed before.
func (s *Store) Close(ctx context.Context) error {
	s.clock.stop()
	return s.disconnect(ctx)
}

func (s *Store) disconnect(ctx context.Context) error {
	var errs []error
	for _, c := range []*mongo.Client{s.hot, s.bulk, s.stream} {
		if c != nil {
			errs = append(errs, c.Disconnect(ctx))
		}
	}
	return errors.Join(errs...)
}
