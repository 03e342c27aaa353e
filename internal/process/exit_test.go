package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childMode makes the test binary act as a service, so that signals and exit codes can be seen from outside.
const childMode = "PROCESS_TEST_CHILD"

func childMain() {
	var c reaperConfig
	os.Args = os.Args[:1]
	if arg := os.Getenv("PROCESS_TEST_ARG"); arg != "" {
		os.Args = append(os.Args, arg)
	}
	Main("reaper", &c, func(ctx context.Context, p *Process) error {
		switch os.Getenv(childMode) {
		case "fail":
			return errors.New("cannot")
		case "panic":
			p.Go("loop", func(context.Context) error { panic("oops") })
		case "deaf":
			p.OnStop("deaf", func(context.Context) error {
				fmt.Println("closing")
				select {}
			})
		}
		fmt.Println("up", Wall().Format(time.RFC3339))
		return nil
	})
}

type child struct {
	*exec.Cmd
	out    *bufio.Reader
	stderr lines
}

func startChild(t *testing.T, mode string, env ...string) *child {
	t.Helper()
	c := &child{Cmd: exec.Command(os.Args[0])}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "AX_") {
			c.Env = append(c.Env, entry)
		}
	}
	c.Env = append(c.Env, childMode+"="+mode, "AX_MONGO_URI=mongodb://db", "AX_NATS_URL=nats://bus", "AX_HTTP_ADDR=127.0.0.1:0")
	c.Env = append(c.Env, env...)
	c.Stderr = &c.stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewReader(out)
	require.NoError(t, c.Start())
	// A service that hangs must not hang the test.
	timer := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() })
	t.Cleanup(func() { timer.Stop() })
	return c
}

func (c *child) line(t *testing.T) string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	require.NoError(t, err, c.stderr.String())
	return line
}

func (c *child) exitCode(t *testing.T) int {
	t.Helper()
	err := c.Wait()
	var failed *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &failed)
	}
	return c.ProcessState.ExitCode()
}

func TestSignalStopsInOrder(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		c := startChild(t, "serve")
		c.line(t)
		require.NoError(t, c.Process.Signal(sig))
		require.Equal(t, ExitClean, c.exitCode(t), c.stderr.String())
		require.Contains(t, c.stderr.String(), "signal "+sig.String())
		require.Contains(t, c.stderr.String(), "msg=stopped")
	}
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	c := startChild(t, "deaf", "AX_STOP_TIMEOUT=10m")
	c.line(t)
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "closing\n", c.line(t))
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.Equal(t, ExitFailed, c.exitCode(t))
	require.Contains(t, c.stderr.String(), "second signal")
}

func TestExitCodeOfAFailure(t *testing.T) {
	c := startChild(t, "fail")
	require.Equal(t, ExitFailed, c.exitCode(t))
	require.Contains(t, c.stderr.String(), "start: cannot")

	c = startChild(t, "panic")
	require.Equal(t, ExitFailed, c.exitCode(t))
	require.Contains(t, c.stderr.String(), "loop: panic: oops")
}

func TestExitCodeOfBadConfiguration(t *testing.T) {
	c := startChild(t, "serve", "AX_REAPER_SWEEP=0", "AX_MONGO_URL=mongodb://ax:s3cret@db")
	require.Equal(t, ExitConfig, c.exitCode(t))
	require.Contains(t, c.stderr.String(), "2 problems")
	require.Contains(t, c.stderr.String(), "did you mean AX_MONGO_URI?")
	require.NotContains(t, c.stderr.String(), "s3cret")

	c = startChild(t, "serve", "PROCESS_TEST_ARG=--port=1")
	require.Equal(t, ExitConfig, c.exitCode(t))
	require.Contains(t, c.stderr.String(), "takes no arguments")
}

func TestHelpListsTheVariables(t *testing.T) {
	var out, errs bytes.Buffer
	for _, arg := range []string{"-h", "--help"} {
		out.Reset()
		require.Equal(t, ExitClean, mainCode("reaper", &reaperConfig{}, []string{arg}, &out, &errs, nothing))
		for _, v := range Variables("reaper", &reaperConfig{}) {
			require.Contains(t, out.String(), v.Name)
			require.Contains(t, out.String(), v.Description)
		}
	}
	out.Reset()
	require.Equal(t, ExitClean, mainCode("reaper", &reaperConfig{}, []string{"--version"}, &out, &errs, nothing))
	require.Equal(t, "reaper "+Version+"\n", out.String())
	out.Reset()
	require.Equal(t, ExitClean, mainCode("reaper", &reaperConfig{}, []string{"--variables"}, &out, &errs, nothing))
	var vars []Variable
	require.NoError(t, json.Unmarshal(out.Bytes(), &vars))
	require.Equal(t, Variables("reaper", &reaperConfig{}), vars)
	require.Empty(t, errs.String())
}

func TestVersionIsTheReleaseOrTheCommit(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}}
	require.Equal(t, "v1.2.3", versionOf(&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: commit}, true))
	require.Equal(t, "0123456789ab", versionOf(&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: commit}, true))
	require.Equal(t, "devel", versionOf(&debug.BuildInfo{}, true))
	require.Equal(t, "unknown", versionOf(nil, false))
	require.NotEmpty(t, Version)
}

func TestWallFollowsTheTestClock(t *testing.T) {
	c := startChild(t, "serve", "AX_TEST_CLOCK_OFFSET=-1h")
	var wall string
	_, err := fmt.Sscanf(c.line(t), "up %s", &wall)
	require.NoError(t, err)
	at, err := time.Parse(time.RFC3339, wall)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(-time.Hour), at, time.Minute)
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.Equal(t, ExitClean, c.exitCode(t))
	_, stamp, _ := strings.Cut(c.stderr.String(), "time=")
	stamp, _, _ = strings.Cut(stamp, " ")
	at, err = time.Parse(time.RFC3339, stamp)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(-time.Hour), at, time.Minute, "log times too")
}
