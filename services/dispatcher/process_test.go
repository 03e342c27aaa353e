package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/services/dispatcher/dispatch"
)

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func build(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), service)
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

var boundAddr = regexp.MustCompile(`http=(\S+)`)

// process runs the service as a process of its own, which can be paused and killed.
func (r *rig) process(path string) (*instance, *os.Process, *output) {
	r.t.Helper()
	out := &output{}
	cmd := exec.Command(path)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "AX_MONGO_URI="+r.config.MongoURI, "AX_MONGO_DB="+r.config.Database, "AX_NATS_URL="+r.config.NATSURL,
		"AX_HTTP_ADDR=127.0.0.1:0", "AX_DISPATCHER_LOCK_TTL=2s", "AX_TEST_CLOCK_OFFSET=1h")
	require.NoError(r.t, cmd.Start())
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone
		_ = cmd.Wait()
		if r.t.Failed() {
			r.t.Log(out.String())
		}
	})
	i := &instance{t: r.t}
	stacktest.Eventually(r.t, 30*time.Second, "it serves HTTP", func() bool {
		found := boundAddr.FindStringSubmatch(out.String())
		if found == nil || !strings.Contains(out.String(), "started") {
			return false
		}
		i.addr = found[1]
		return true
	})
	return i, cmd.Process, out
}

// A leader that is paused goes on believing for a moment when it wakes up. It does no harm: what it signals is known, and
// its place in the stream is refused.
func TestAPausedLeaderDoesNoHarm(t *testing.T) {
	r, path := newRig(t), build(t)
	f := r.workers(10)
	first, paused, log := r.process(path)
	first.awaitLeading()
	r.insert(100, nil)
	f.await(100, 30*time.Second)
	second, _, _ := r.process(path)

	require.NoError(t, paused.Signal(syscall.SIGSTOP))
	began := time.Now()
	r.insert(300, func(i int, tk *task.Task) { tk.Priority = i % 10 })
	f.await(400, 30*time.Second)
	t.Logf("the other one led and had signalled everything after %v", time.Since(began).Round(time.Millisecond))
	second.awaitLeading()
	since := r.now()
	require.NoError(t, paused.Signal(syscall.SIGCONT))
	r.insert(100, nil)
	f.await(500, 30*time.Second)
	stacktest.Eventually(t, 30*time.Second, "it has noticed", func() bool { return first.metric("ax_lead_leading_bool") == 0 })
	require.EqualValues(t, 1, second.metric("ax_lead_leading_bool"))
	require.Contains(t, log.String(), "leading ended")

	// What it would have saved had it noticed later.
	stacktest.Eventually(t, 30*time.Second, "the new leader has saved its place", func() bool {
		_, at, err := r.db.LoadCursor(t.Context(), dispatch.CursorName)
		return err == nil && at.After(since)
	})
	err := r.db.SaveCursor(t.Context(), dispatch.CursorName, nil, time.Time{}, 1)
	require.ErrorIs(t, err, task.ErrNotLeader)
}

func TestTheDatabaseIsKilled(t *testing.T) {
	m := stacktest.StartMongo(t, localstack.MongoOptions{})
	r := newRigOn(t, m.URI(), "killed")
	i := r.dispatcher()
	i.awaitLeading()
	r.insert(300, func(i int, tk *task.Task) { tk.Priority = i % 10 })
	at := r.now().Add(3 * time.Second)
	r.insert(30, func(_ int, tk *task.Task) { tk.ScheduledAt = at })
	require.NoError(t, m.Kill())
	require.NoError(t, m.Restart(t.Context()))
	f := r.workers(10)
	f.await(330, 90*time.Second)
	r.insert(50, nil)
	f.await(380, 60*time.Second)
	stacktest.Eventually(t, time.Minute, "it follows the stream", func() bool { return i.metric("ax_dispatcher_degraded_bool") == 0 })
}
