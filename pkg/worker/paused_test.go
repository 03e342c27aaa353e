package worker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

// childVariable makes the test binary a worker of its own, which can be stopped and killed.
const childVariable = "WORKER_TEST_CHILD"

// child is a worker whose handler says on standard output when it begins and why its context ended, and returns only when
// it reads a line: what is in it becomes its result, or after a "!" its error.
func child() {
	o, err := FromEnv()
	if err != nil {
		fmt.Println("error", err)
		os.Exit(2)
	}
	w, err := New(o)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(2)
	}
	lines := bufio.NewScanner(os.Stdin)
	Handle(w, "long", func(ctx context.Context, _ struct{ N int }) (string, error) {
		fmt.Println("began")
		<-ctx.Done()
		fmt.Println("ended", context.Cause(ctx))
		if !lines.Scan() {
			return "", context.Cause(ctx)
		}
		if text, failed := strings.CutPrefix(lines.Text(), "!"); failed {
			return "", fmt.Errorf("%s", text)
		}
		return lines.Text(), nil
	}, Concurrency(1))
	if err := w.Run(context.Background()); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

type childProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	input io.Writer
}

func (r *rig) child(t *testing.T) *childProcess {
	c := &childProcess{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), childVariable+"=1", "AX_MONGO_URI="+stacktest.Mongo(t).URI(), "AX_MONGO_DB="+r.db,
		"AX_NATS_URL="+r.nats.URL(), "AX_WORKER_LEASE=2s", "AX_WORKER_BEAT=200ms", "AX_WORKER_ID=child")
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.input, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may be gone
		<-read
		_ = c.cmd.Wait() // killed
	})
	return c
}

func (c *childProcess) says(prefix string) string {
	c.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line := <-c.lines:
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-deadline:
			c.t.Fatalf("the child did not say %q", prefix)
		}
	}
}

func (c *childProcess) signal(s syscall.Signal) { require.NoError(c.t, c.cmd.Process.Signal(s)) }

// over waits until a task's lease is over by the database's clock, and ends the execution as the reaper does.
func (r *rig) over(id string) {
	stacktest.Eventually(r, patience, "the lease is over", func() bool {
		now, _, err := r.store.ServerTime(r.Context())
		return err == nil && now.After(r.get(id).LeaseUntil)
	})
	r.reap(id)
}

func TestPausedWorkerReportsNothingForATaskThatHasMovedOn(t *testing.T) {
	for name, input := range map[string]string{"success while another runs it": "from the child\n", "failure while another runs it": "!from the child\n"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c := r.child(t)
			k := r.submit("long", 1)[0]
			c.says("began")
			c.signal(syscall.SIGSTOP)
			r.over(k.ID)

			g := newGate()
			other := r.worker()
			HandleFunc(other, "long", func(ctx context.Context, _ Task) (any, error) { return "from the other", g.pass(ctx) })
			r.run(other)
			r.signal(r.get(k.ID))
			execution := g.awaitEntry(t)
			leased := r.get(k.ID).LeaseUntil

			c.signal(syscall.SIGCONT)
			require.Equal(t, "ended "+ErrLeaseLost.Error(), c.says("ended"))
			_, err := io.WriteString(c.input, input)
			require.NoError(t, err)
			// The slot of the child is free again when it has dealt with its late return: then it takes the next task.
			next := r.submit("long", 9)
			for range next {
				select {
				case <-g.entered:
				case line := <-c.lines:
					require.Equal(t, "began", line)
				case <-time.After(patience):
					t.Fatal("no task began")
				}
			}
			now := r.get(k.ID)
			require.Equal(t, task.Running, now.State)
			require.Equal(t, execution, now.ExecutionID())
			require.Zero(t, now.Failures)
			require.False(t, now.LeaseUntil.Before(leased))
			close(g.open)
			done := r.awaitState(k.ID, task.Success)
			require.Equal(t, `"from the other"`, string(done.Result))
			require.Equal(t, 2, done.Attempts)
			require.Equal(t, 1, done.Losses)
			require.Equal(t, []task.Reason{task.ReasonSubmitted, task.ReasonClaimed, task.ReasonLeaseExpired, task.ReasonClaimed, task.ReasonSucceeded}, reasons(done))
		})
	}
}

func TestKilledWorkersTaskRunsElsewhere(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := newRig(t)
	c := r.child(t)
	k := r.submit("long", 1)[0]
	c.says("began")
	c.signal(syscall.SIGKILL)
	r.over(k.ID)
	other := r.worker()
	HandleFunc(other, "long", func(context.Context, Task) (any, error) { return "from the other", nil })
	r.run(other)
	done := r.awaitState(k.ID, task.Success) // nobody signals it: found by a search
	require.Equal(t, 1, done.Losses)
	require.Zero(t, done.Failures)
}
