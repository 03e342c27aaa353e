// Package stacktest gives tests a real database and a real NATS, and cleans up after them. A test package uses it so:
//
//	func TestMain(m *testing.M) { stacktest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		uri, db := stacktest.Mongo(t).URI(), stacktest.Database(t)
//		...
//	}
package stacktest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ax-scheduler/ax/internal/localstack"
)

// installTimeout leaves room for the one build of the database on a fresh machine.
const installTimeout = 15 * time.Minute

// shared is the one database of this test binary, started by the first test that asks for it.
var shared struct {
	once  sync.Once
	mongo *localstack.Mongo
	err   error
}

// Main is the body of TestMain: it runs the tests, stops the shared database, fails the run when a goroutine is left
// over but for those to ignore, and exits. A run that panics or times out takes the database with it, because the server dies with
// its parent.
func Main(m *testing.M, ignore ...goleak.Option) {
	code := m.Run()
	if shared.mongo != nil {
		if err := shared.mongo.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stacktest:", err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(ignore...); err != nil {
			fmt.Fprintln(os.Stderr, "stacktest: goroutines are left over after all tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Mongo is the database shared by all tests of this binary. Do not kill or restart it: a test that must do so starts
// its own with StartMongo.
func Mongo(t testing.TB) *localstack.Mongo {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
		defer cancel()
		shared.mongo, shared.err = localstack.StartMongo(ctx, localstack.MongoOptions{Log: os.Stderr, AllowBuild: true})
	})
	require.NoError(t, shared.err, "start the shared database")
	return shared.mongo
}

// StartMongo starts a database for this test alone and stops it in Cleanup. It skips the test when AX_MONGO_URI names
// a database, which is not ours to stop or change.
func StartMongo(t testing.TB, opts localstack.MongoOptions) *localstack.Mongo {
	t.Helper()
	if os.Getenv("AX_MONGO_URI") != "" {
		t.Skip("needs a database of its own; AX_MONGO_URI is set")
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	opts.AllowBuild = true
	m, err := localstack.StartMongo(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Stop()) })
	return m
}

var databases atomic.Int64

// Database is the name of a database nobody has used, on the shared server; Cleanup drops it.
func Database(t testing.TB) string {
	t.Helper()
	m := Mongo(t)
	name := databaseName(t.Name(), os.Getpid(), databases.Add(1))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, localstack.DropDatabase(ctx, m.URI(), name))
	})
	return name
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// databaseName fits a test's name into what MongoDB allows (63 bytes, few signs). The process id keeps test binaries
// apart that share the server AX_MONGO_URI names.
func databaseName(test string, pid int, n int64) string {
	short := strings.Trim(notInName.ReplaceAllString(strings.ToLower(test), "_"), "_")
	if len(short) > 30 {
		short = short[:30]
	}
	return fmt.Sprintf("axtest_%d_%d_%s", pid, n, short)
}

// runsNATS, set for a copy of the test binary, makes it a NATS server.
const runsNATS = "TEST_RUNS_NATS"

// Before any TestMain, which may have more to do than to call Main.
func init() {
	if os.Getenv(runsNATS) != "" {
		os.Exit(localstack.NATSMain(os.Args[1:]))
	}
}

// NATS starts a server for this test alone, as a process, and kills it in Cleanup. The library that it is made of has data races
// of its own, most of all when it stops: in a process of its own, whose reports are set aside, they fail no test of ax.
func NATS(t testing.TB, change ...func(*localstack.NATSOptions)) *localstack.NATSProcess {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dir := t.TempDir()
	opts := localstack.NATSProcessOptions{Path: os.Args[0], NATSOptions: localstack.NATSOptions{Dir: dir},
		Env: []string{runsNATS + "=1", "GORACE=exitcode=0 atexit_sleep_ms=0 log_path=" + filepath.Join(dir, "races")}}
	for _, c := range change {
		c(&opts.NATSOptions)
	}
	n, err := localstack.StartNATSProcess(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Kill()) })
	return n
}

// Eventually waits until cond holds, looking every few milliseconds, and fails the test when it does not within
// timeout. It is the one way in which tests wait for something they get no signal for.
func Eventually(t testing.TB, timeout time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("after %v still not so: %s", timeout, what)
		}
	}
}
