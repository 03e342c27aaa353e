package localstack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// ServiceOptions says which program of ax is run as a process of its own, and how.
type ServiceOptions struct {
	Name string   // shown in errors, such as "submitter"
	Path string   // of the program
	Args []string // none for a service
	Env  []string // "AX_...=..." beside the environment of this process; AX_HTTP_ADDR is set to a free port unless given
	// EnvOnly gives the program Env and nothing else, as a container does.
	EnvOnly bool
	Log     io.Writer // receives all output as it comes; nil: only the newest is kept, for error messages
}

// Service is a running program of ax that serves /readyz, as an operator would run it.
type Service struct {
	opts  ServiceOptions
	child *child
	addr  string
}

// StartService starts the program and returns when it serves its health page, ready or not. The process dies with this one.
func StartService(ctx context.Context, opts ServiceOptions) (*Service, error) {
	s := &Service{opts: opts}
	return s, s.Start(ctx)
}

// Start runs the program again after it was killed or stopped.
func (s *Service) Start(ctx context.Context) error {
	if s.child != nil && s.child.running() {
		return fmt.Errorf("start %s: it runs already", s.opts.Name)
	}
	env := s.opts.Env
	if !s.opts.EnvOnly {
		env = append(append(withoutAX(), "AX_HTTP_ADDR=127.0.0.1:0", "AX_LOG_FORMAT=text"), env...)
	}
	c, err := startProcess(s.opts.Name, append([]string{s.opts.Path}, s.opts.Args...), env, s.opts.Log)
	if err != nil {
		return err
	}
	s.child = c
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	line, err := c.waitOutput(ctx, servedAt.MatchString)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(servedAt.FindStringSubmatch(line)[1])
	if err != nil {
		return fmt.Errorf("start %s: %w", s.opts.Name, err)
	}
	if net.ParseIP(host).IsUnspecified() { // it listens on all addresses, this one too
		host = "127.0.0.1"
	}
	s.addr = net.JoinHostPort(host, port)
	return nil
}

// servedAt finds the address of the health page in a log line, text or JSON.
var servedAt = regexp.MustCompile(`\bhttp(?:=|":")([^" ]+)`)

// withoutAX is the environment of this process less its own AX_ variables, which are not meant for the program.
func withoutAX() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AX_") {
			env = append(env, v)
		}
	}
	return env
}

// URL is the base of its health and metrics pages.
func (s *Service) URL() string { return "http://" + s.addr }

// PID is the process id.
func (s *Service) PID() int { return s.child.cmd.Process.Pid }

// Name is the name it was started under.
func (s *Service) Name() string { return s.opts.Name }

// Output is the newest output, for error messages.
func (s *Service) Output() string { return s.child.out.String() }

// Running tells whether the process is still there.
func (s *Service) Running() bool { return s.child.running() }

// Done is closed once the process is gone.
func (s *Service) Done() <-chan struct{} { return s.child.done }

// Kill ends the process at once, as kill -9 does.
func (s *Service) Kill() error { return s.child.stop(0) }

// Stop asks the process to end and kills it when it has not ended within grace.
func (s *Service) Stop(grace time.Duration) error { return s.child.stop(grace) }

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (s *Service) Signal(sig syscall.Signal) error { return s.child.signal(sig) }

// ExitError says how the process ended: nil after a clean exit. It waits for the end.
func (s *Service) ExitError() error {
	<-s.child.done
	return s.child.err
}

// WaitReady waits until /readyz answers 200. The error says what the program waited for last.
func (s *Service) WaitReady(ctx context.Context) error {
	last := "no answer"
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		ready, waits, err := readyz(ctx, s.URL())
		switch {
		case ready:
			return nil
		case err == nil:
			last = waits
		}
		select {
		case <-ticker.C:
		case <-s.child.done:
			return s.child.ended()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %s: %w; its last output:\n%s", s.opts.Name, last, context.Cause(ctx), s.child.out)
		}
	}
}

// readyz asks a health page whether its process is ready, and if not, for the body that says why.
func readyz(ctx context.Context, base string) (ready bool, waits string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
	if err != nil {
		return false, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, "", err
	}
	defer res.Body.Close()
	var body json.RawMessage
	if err := json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&body); err != nil {
		return false, "", err
	}
	return res.StatusCode == http.StatusOK, string(body), nil
}

// ServiceNames are the services that make up ax, in the order in which they are started.
var ServiceNames = task.Services

// ServicePath is where the program of a service lies beside the others, such as the folder that `make build` fills.
func ServicePath(dir, name string) string { return filepath.Join(dir, name) }
