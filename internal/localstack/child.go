package localstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is one server process that dies with this one.
type child struct {
	name string
	cmd  *exec.Cmd
	out  *tail
	done chan struct{} // closed once the process is gone
	err  error         // how it ended; read only after done
}

// startChild starts a server with this process's environment and env, and returns when it runs. Its output is kept, newest
// last, for error messages.
func startChild(name string, argv, env []string) (*child, error) {
	return startProcess(name, argv, append(os.Environ(), env...), nil)
}

// startProcess starts a process with exactly this environment. All output also goes to log when that is not nil.
func startProcess(name string, argv, env []string, log io.Writer) (*child, error) {
	c := &child{name: name, out: newTail(), done: make(chan struct{})}
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Env = env
	var out io.Writer = c.out
	if log != nil {
		out = io.MultiWriter(c.out, log)
	}
	c.cmd.Stdout, c.cmd.Stderr = out, out // the same writer: then the two are written one after the other
	c.cmd.SysProcAttr = childAttributes()
	// A grandchild may keep the pipes open after the process is gone; do not wait for it for ever.
	c.cmd.WaitDelay = 2 * time.Second

	started := make(chan error, 1)
	go func() {
		// The kernel ties the child's death to the thread that started it, not to the process, so that thread
		// must live as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// waitOutput waits until a line of output satisfies match and returns that line.
func (c *child) waitOutput(ctx context.Context, match func(line string) bool) (string, error) {
	for {
		line, more := c.out.find(match)
		if line != "" {
			return line, nil
		}
		select {
		case <-more:
		case <-c.done:
			if line, _ := c.out.find(match); line != "" {
				return line, nil
			}
			return "", c.ended()
		case <-ctx.Done():
			return "", fmt.Errorf("%s did not come up: %w; its last output:\n%s", c.name, context.Cause(ctx), c.out)
		}
	}
}

// ended describes an exit nobody asked for.
func (c *child) ended() error {
	return fmt.Errorf("%s exited (%v); its last output:\n%s", c.name, c.err, c.out)
}

func (c *child) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// stop asks the process to end, and kills it when it has not ended within grace. Zero grace kills at once.
func (c *child) stop(grace time.Duration) error {
	if grace > 0 {
		if err := c.signal(syscall.SIGTERM); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-c.done:
			return nil
		case <-timer.C:
		}
	}
	if err := c.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-c.done
	return nil
}

// signal reaches the whole process group, because a server may be started through a wrapper.
func (c *child) signal(sig syscall.Signal) error {
	if !c.running() {
		return nil
	}
	if err := syscall.Kill(-c.cmd.Process.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s: %w", c.name, err)
	}
	return nil
}

// tail keeps the newest output of a process, bounded, and tells when more has come.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	more chan struct{}
}

const (
	tailBytes  = 64 << 10
	tailQuoted = 4 << 10 // of which an error message shows this much
)

func newTail() *tail { return &tail{more: make(chan struct{})} }

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	close(t.more)
	t.more = make(chan struct{})
	return len(p), nil
}

// find returns the first complete line that matches, or "" and a channel that closes when more output came.
func (t *tail) find(match func(string) bool) (string, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	complete := t.buf[:bytes.LastIndexByte(t.buf, '\n')+1]
	for line := range strings.Lines(string(complete)) {
		if line = strings.TrimRight(line, "\r\n"); match(line) {
			return line, t.more
		}
	}
	return "", t.more
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.buf) == 0 {
		return "(none)"
	}
	return strings.TrimSpace(string(t.buf[max(0, len(t.buf)-tailQuoted):]))
}
