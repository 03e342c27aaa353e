package localstack_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

const script = "../../scripts/local-db"

// machine is a made-up machine: an empty cache, and a PATH with a few basic tools and those put there.
type machine struct {
	t     *testing.T
	bin   string
	cache string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	home := t.TempDir()
	m := machine{t: t, bin: filepath.Join(home, "bin"), cache: filepath.Join(home, "cache", "ax")}
	require.NoError(t, os.MkdirAll(m.bin, 0o700))
	for _, tool := range []string{"bash", "env", "sh", "cat", "mkdir", "rm", "mv", "chmod", "flock", "sleep", "sed"} {
		path, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(m.bin, tool)))
	}
	t.Setenv("PATH", m.bin)
	t.Setenv("XDG_CACHE_HOME", filepath.Dir(m.cache))
	t.Setenv("AX_MONGO_URI", "")
	return m
}

func (m machine) program(path, body string) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(m.t, os.WriteFile(path, []byte("#!/usr/bin/env bash\nset -eu\n"+body+"\n"), 0o700))
}

func (m machine) tool(name, body string) { m.program(filepath.Join(m.bin, name), body) }

// cargo stands for the real one: it notes each build and leaves a program where asked.
func (m machine) cargo(builds string) {
	m.tool("cmake", "")
	m.tool("cc", "")
	m.tool("cargo", fmt.Sprintf(`echo "$@" >> %q
while [ "$1" != --root ]; do shift; done
mkdir -p "$2/bin" "$CARGO_TARGET_DIR"
echo '#!/bin/sh' > "$2/bin/secantusd-rs"
chmod +x "$2/bin/secantusd-rs"`, builds))
}

// python stands for the real one: it notes each installation and leaves a program in the environment.
func (m machine) python(installs string) {
	m.tool("python3", fmt.Sprintf(`[ "$1 $2" = "-m venv" ]
mkdir -p "$3/bin"
cat > "$3/bin/python" <<'PIP'
#!/usr/bin/env bash
echo "$@" >> %q
echo '#!/bin/sh' > "${0%%/*}/secantusd-py"
chmod +x "${0%%/*}/secantusd-py"
PIP
chmod +x "$3/bin/python"`, installs))
}

func (m machine) run(arg string) (string, error) {
	out, err := exec.Command(script, arg).CombinedOutput()
	return string(out), err
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func TestChoiceOfDatabaseAndTheScriptAgree(t *testing.T) {
	m := newMachine(t)
	out, err := m.run("path")
	require.Error(t, err)
	require.Contains(t, out, "scripts/local-db build")

	for _, step := range []struct {
		name, path string
	}{
		{"secantusd-py", localstack.WheelServer(m.cache)},
		{"secantusd-rs", localstack.RustServer(m.cache)},
		{"mongod", filepath.Join(m.bin, "mongod")},
	} {
		m.program(step.path, "")
		var log bytes.Buffer
		e, err := localstack.ChooseEngine(t.Context(), false, &log)
		require.NoError(t, err)
		require.Equal(t, step.name, e.Name())
		require.Equal(t, step.path, e.Binary())
		require.NotEmpty(t, e.Why())
		require.Empty(t, log.String(), "nothing was installed")
		out, err := m.run("path")
		require.NoError(t, err, out)
		require.Equal(t, step.name+" "+step.path+"\n", out)
	}
	t.Setenv("AX_MONGO_URI", "mongodb://ax:s3cret@db")
	out, err = m.run("path")
	require.NoError(t, err)
	require.Equal(t, "uri (AX_MONGO_URI)\n", out)
}

func TestBuildIsUsedWhenAllowedAndPossible(t *testing.T) {
	m := newMachine(t)
	builds := filepath.Join(t.TempDir(), "builds")
	m.cargo(builds)
	m.python(filepath.Join(t.TempDir(), "installs"))
	var log bytes.Buffer
	e, err := localstack.ChooseEngine(t.Context(), true, &log)
	require.NoError(t, err)
	require.Equal(t, "secantusd-rs", e.Name())
	require.Equal(t, localstack.RustServer(m.cache), e.Binary())
	require.Contains(t, log.String(), "5-7 minutes")
	require.Contains(t, read(t, builds), "install secantus-mdb --version "+localstack.RustVersion+" --ignore-rust-version")
	left, err := filepath.Glob(filepath.Join(m.cache, "*.part"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestWheelIsUsedWhenABuildIsNotAllowedOrNotPossible(t *testing.T) {
	for allow, why := range map[bool]string{true: "needs cargo, cmake, cc", false: "scripts/local-db build"} {
		m := newMachine(t)
		installs := filepath.Join(t.TempDir(), "installs")
		m.python(installs)
		var log bytes.Buffer
		e, err := localstack.ChooseEngine(t.Context(), allow, &log)
		require.NoError(t, err)
		require.Equal(t, "secantusd-py", e.Name())
		require.Equal(t, localstack.WheelServer(m.cache), e.Binary())
		require.Contains(t, e.Why(), why)
		require.Contains(t, e.Why(), "slow")
		require.Contains(t, log.String(), "about 15 seconds")
		require.Contains(t, read(t, installs), "SecantusDB=="+localstack.WheelVersion)
	}
}

func TestNothingAtHandSaysWhatToDo(t *testing.T) {
	newMachine(t)
	var log bytes.Buffer
	_, err := localstack.ChooseEngine(t.Context(), true, &log)
	require.Error(t, err)
	require.Contains(t, log.String(), "missing python3: install it, put mongod on PATH, or set AX_MONGO_URI")
}

func TestScriptInstallsOnceHoweverOftenItRuns(t *testing.T) {
	m := newMachine(t)
	builds, installs := filepath.Join(t.TempDir(), "builds"), filepath.Join(t.TempDir(), "installs")
	m.cargo(builds)
	m.python(installs)
	for _, arg := range []string{"build", "quick"} {
		var runs sync.WaitGroup
		for range 4 {
			runs.Go(func() {
				out, err := m.run(arg)
				if err != nil {
					t.Errorf("%s: %v\n%s", arg, err, out)
				}
			})
		}
		runs.Wait()
		_, err := m.run(arg)
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(read(t, builds), "\n"), "built once")
	require.Equal(t, 1, strings.Count(read(t, installs), "\n"), "installed once")
}

func TestScriptEnsureDoesWhatIsBestHere(t *testing.T) {
	m := newMachine(t)
	builds, installs := filepath.Join(t.TempDir(), "builds"), filepath.Join(t.TempDir(), "installs")
	m.python(installs)
	ensure := func() string {
		out, err := m.run("ensure")
		require.NoError(t, err, out)
		return out
	}
	require.Contains(t, ensure(), "needs cargo, cmake and cc")
	require.FileExists(t, localstack.WheelServer(m.cache))
	m.cargo(builds)
	ensure()
	require.FileExists(t, localstack.RustServer(m.cache), "the slow one does not stand in the way of the fast one")
	require.Contains(t, ensure(), "using secantusd-rs")
	m.tool("mongod", "")
	require.Contains(t, ensure(), "using mongod")
	t.Setenv("AX_MONGO_URI", "mongodb://db")
	require.Contains(t, ensure(), "using uri")
	require.Equal(t, 1, strings.Count(read(t, builds), "\n"))
}

func TestScriptBuildCutShortLeavesNothingThatLooksFinished(t *testing.T) {
	m := newMachine(t)
	m.cargo(filepath.Join(t.TempDir(), "builds"))
	m.tool("cargo", `while [ "$1" != --root ]; do shift; done
mkdir -p "$2/bin"
echo half > "$2/bin/secantusd-rs"
exit 1`)
	_, err := m.run("build")
	require.Error(t, err)
	require.NoFileExists(t, localstack.RustServer(m.cache))
}

func TestScriptRefusesWhatItDoesNotKnow(t *testing.T) {
	m := newMachine(t)
	out, err := m.run("biuld")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.ExitCode())
	require.Contains(t, out, "usage:")
	out, err = m.run("--help")
	require.NoError(t, err)
	require.Contains(t, out, "usage:")
}

func TestScriptNamesTheSameVersions(t *testing.T) {
	text := read(t, script)
	require.Contains(t, text, "\nRUST_VERSION="+localstack.RustVersion+"\n")
	require.Contains(t, text, "\nWHEEL_VERSION="+localstack.WheelVersion+"\n")
}

// The stand-in, started under mongod's name and with mongod's flags, shows that the way a mongod is run hangs together.
func TestMongodOnPathIsRunAsAOneNodeReplicaSet(t *testing.T) {
	if os.Getenv("AX_MONGO_URI") != "" {
		t.Skip("needs a database of its own; AX_MONGO_URI is set")
	}
	cache, err := localstack.CacheDir()
	require.NoError(t, err)
	server := localstack.RustServer(cache)
	if _, err := os.Stat(server); err != nil {
		t.Skip("the fast local database is not cached (scripts/local-db build)")
	}
	m := newMachine(t)
	calls := filepath.Join(t.TempDir(), "calls")
	m.tool("mongod", fmt.Sprintf(`echo "$@" >> %q
while [ $# -gt 0 ]; do
  case "$1" in --port) port=$2 ;; --dbpath) dir=$2 ;; --nounixsocket) shift; continue ;; esac
  shift 2
done
%q --host 127.0.0.1 --port "$port" --storage-path "$dir" --log-file-max 128MB --sync-on-commit |
  sed -u 's/.*listening on.*/{"msg":"Waiting for connections"}/'`, calls, server))

	var log bytes.Buffer
	db := stacktest.StartMongo(t, localstack.MongoOptions{Log: &log})
	require.Equal(t, "database: mongod (found on PATH)\n", log.String())
	require.Equal(t, localstack.StoreMongoDB, db.Store())
	uri := db.URI()
	require.NoError(t, connect(t, uri).Ping(t.Context(), nil))
	require.NoError(t, db.Kill())
	require.NoError(t, db.Restart(t.Context()))
	require.Equal(t, uri, db.URI())
	first, second, _ := strings.Cut(read(t, calls), "\n")
	require.Contains(t, first, "--replSet ax0")
	require.Equal(t, first+"\n", second, "the same folder and port again")

	alone := stacktest.StartMongo(t, localstack.MongoOptions{Standalone: true})
	require.NotContains(t, strings.Split(read(t, calls), "\n")[2], "--replSet")
	require.NoError(t, alone.Stop())
}

// What a mongod answers that was started with --replSet for the first time: it knows of no set, is told to form one,
// is elected a moment later. Another process may have told it just before.
func TestNewReplicaSetIsFormedOnceAndWaitedFor(t *testing.T) {
	for _, refusal := range []error{nil, mongo.CommandError{Code: 23, Message: "already initialized"}} {
		var told []bson.D
		hellos := []bson.D{
			{{Key: "isWritablePrimary", Value: false}, {Key: "isreplicaset", Value: true}},
			{{Key: "isWritablePrimary", Value: false}, {Key: "isreplicaset", Value: true}},
			{{Key: "isWritablePrimary", Value: false}, {Key: "setName", Value: "ax0"}},
			{{Key: "isWritablePrimary", Value: true}, {Key: "setName", Value: "ax0"}},
		}
		err := localstack.FormReplicaSet(t.Context(), "127.0.0.1:1", func(_ context.Context, command bson.D) (bson.Raw, error) {
			if command[0].Key != "hello" {
				told = append(told, command)
				return nil, refusal
			}
			reply, err := bson.Marshal(hellos[0])
			hellos = hellos[1:]
			return reply, err
		})
		require.NoError(t, err)
		require.Empty(t, hellos, "waited for the election")
		require.Equal(t, []bson.D{{{Key: "replSetInitiate", Value: bson.D{
			{Key: "_id", Value: "ax0"},
			{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: "127.0.0.1:1"}}}},
		}}}}, told)
	}

	refused := mongo.CommandError{Code: 93, Message: "bad config"}
	err := localstack.FormReplicaSet(t.Context(), "h:1", func(_ context.Context, command bson.D) (bson.Raw, error) {
		if command[0].Key != "hello" {
			return nil, refused
		}
		return bson.Marshal(bson.D{{Key: "isreplicaset", Value: true}})
	})
	require.ErrorContains(t, err, "bad config")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = localstack.FormReplicaSet(ctx, "h:1", func(context.Context, bson.D) (bson.Raw, error) {
		return bson.Marshal(bson.D{{Key: "isWritablePrimary", Value: false}})
	})
	require.ErrorContains(t, err, "never took writes")
}

func TestDatabaseThatCannotStartSaysWhy(t *testing.T) {
	m := newMachine(t)
	m.program(localstack.RustServer(m.cache), "echo 'the disk is full' >&2; exit 3")
	t.Setenv("TMPDIR", t.TempDir())
	_, err := localstack.StartMongo(t.Context(), localstack.MongoOptions{})
	require.ErrorContains(t, err, "secantusd-rs exited (exit status 3)")
	require.ErrorContains(t, err, "the disk is full")
	require.Empty(t, dirsIn(t, os.TempDir()), "its folder is gone")
}

func TestSlowStandInRunsAndSaysThatItIsSlow(t *testing.T) {
	cache, err := localstack.CacheDir()
	require.NoError(t, err)
	server := localstack.WheelServer(cache)
	if _, err := os.Stat(server); err != nil {
		t.Skip("the slow local database is not cached (scripts/local-db quick)")
	}
	m := newMachine(t)
	m.program(localstack.WheelServer(m.cache), fmt.Sprintf("exec %q \"$@\"", server))
	var log bytes.Buffer
	db := stacktest.StartMongo(t, localstack.MongoOptions{Log: &log})
	require.Contains(t, log.String(), "database: secantusd-py (slow")
	require.Equal(t, localstack.StoreSecantusDB, db.Store())
	coll := connect(t, db.URI()).Database("d").Collection("c")
	_, err = coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}})
	require.NoError(t, err)
	require.NoError(t, db.Kill())
	require.NoError(t, db.Restart(t.Context()))
	require.NoError(t, connect(t, db.URI()).Database("d").Collection("c").FindOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}).Err())
}
