package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

// Any service, and the database, may be killed at any time, also where a newcomer tries it.
func TestDevStartsAgainWhatWasKilled(t *testing.T) {
	t.Parallel()
	if os.Getenv("AX_MONGO_URI") != "" {
		t.Skip("needs a database of its own; AX_MONGO_URI is set")
	}
	d := startDev(t)
	d.startWorker(t)
	for _, name := range []string{"submitter", "database"} {
		d.kill(t, name)
		d.awaitErr(t, "the "+name+" ended (signal: killed); it is started again in ")
		stacktest.Eventually(t, time.Minute, "the "+name+" runs again", func() bool { return strings.Contains(d.errs.String(), "the "+name+" runs again") })
		id := "after-the-" + name
		// Stored or not, the same submission again is accepted once.
		stacktest.Eventually(t, time.Minute, "tasks are taken again", func() bool {
			return d.ax(t, "submit", "email", "--payload", `{"runMs":1}`, "--id", id).code == 0
		})
		require.Zero(t, d.ax(t, "wait", id).code, "%s", d.errs.String())
	}
	for n := range 6 {
		stacktest.Eventually(t, time.Minute, "cron runs", func() bool {
			return strings.Count(d.errs.String(), "the cron runs again") == n
		})
		d.kill(t, "cron")
	}
	require.Equal(t, 1, d.wait(t))
	require.Contains(t, d.errs.String(), "ax: the cron has ended again, after 5 restarts within a minute: signal: killed; its last output:\n")
}

// kill is kill -9 of a program that dev runs.
func (d *dev) kill(t *testing.T, name string) {
	t.Helper()
	var pids []int
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.cmd.Process.Pid))
	require.NoError(t, err)
	for _, file := range threads {
		children, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended meanwhile
		}
		for _, child := range strings.Fields(string(children)) {
			line, err := os.ReadFile("/proc/" + child + "/cmdline")
			if err != nil || len(line) == 0 {
				continue // it has ended
			}
			of := "database"
			if program, _, _ := strings.Cut(string(line), "\x00"); filepath.Dir(program) == bin {
				of = filepath.Base(program)
			}
			if of == name {
				pid, err := strconv.Atoi(child)
				require.NoError(t, err)
				pids = append(pids, pid)
			}
		}
	}
	require.Len(t, pids, 1, name)
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
}

func TestDevSaysWhatIsInItsWay(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)

	for _, c := range []struct {
		env  string
		args []string
		says []string
	}{
		// What a terminal keeps of a local database that is gone.
		{"AX_MONGO_URI=mongodb://127.0.0.1:1/?directConnection=true", []string{"--nats-port", "0", "--http-port", "0"},
			[]string{"127.0.0.1:1", "does not answer", "`unset AX_MONGO_URI`"}},
		{"", []string{"--nats-port", "0", "--http-port", port}, []string{"--http-port", "submitter", port}},
		{"", []string{"--nats-port", "0", "--http-port", "0", "--mongo-port", port}, []string{"--mongo-port", port}},
	} {
		begun := time.Now()
		cmd := axCommand(t.Context(), "", append([]string{"dev"}, c.args...)...)
		if c.env != "" {
			cmd.Env = append(cmd.Env, c.env)
		}
		out, err := cmd.CombinedOutput()
		require.IsType(t, &exec.ExitError{}, err, "%s", out)
		require.Less(t, time.Since(begun), 30*time.Second)
		for _, part := range c.says {
			require.Contains(t, string(out), part)
		}
	}
}
