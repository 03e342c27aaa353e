package stacktest

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
)

// runsService, set for a copy of the test binary, makes it the service itself. It has no AX_ before it: services refuse such
// variables that they do not know.
const runsService = "TEST_RUNS_SERVICE"

// ServiceMain is [Main] for the tests of a service's program, whose main function is given: [Service] then runs copies of the
// test binary as the service, real processes that can be killed, without a build of their own.
func ServiceMain(m *testing.M, main func()) {
	if os.Getenv(runsService) != "" {
		main()
		return
	}
	Main(m)
}

// Service runs the service under test as a process, returns when it is ready, and stops it in Cleanup. It must stop in order
// then, unless the test has killed it. Its output is shown when the test fails.
func Service(t testing.TB, name string, env ...string) *localstack.Service {
	t.Helper()
	s := StartService(t, name, env...)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, s.WaitReady(ctx))
	return s
}

// StartService is [Service] for one that cannot be ready yet.
func StartService(t testing.TB, name string, env ...string) *localstack.Service {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: name, Path: os.Args[0], Env: append(env, runsService+"=1")})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = s.Signal(syscall.SIGCONT) // one that the test has paused would not end
		untouched := s.Running()
		err := s.Stop(20 * time.Second)
		if err == nil && untouched {
			err = s.ExitError()
		}
		if err != nil || t.Failed() {
			t.Logf("output of the %s:\n%s", name, s.Output())
		}
		require.NoError(t, err, "the %s stops in order, and without a data race", name)
	})
	return s
}

// Ready tells whether a service says that it is ready.
func Ready(t testing.TB, s *localstack.Service) bool {
	t.Helper()
	answer, err := http.Get(s.URL() + "/readyz")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer.StatusCode == http.StatusOK
}

// Metric is the sum of a service's metric over its labels; of those series only whose labels hold the given text.
func Metric(t testing.TB, s *localstack.Service, name string, labels ...string) (sum float64) {
	t.Helper()
	answer, err := http.Get(s.URL() + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
next:
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		end := strings.LastIndexByte(rest, ' ')
		for _, l := range labels {
			if !strings.Contains(rest[:end], l) {
				continue next
			}
		}
		var v float64
		_, err := fmt.Sscan(rest[end+1:], &v)
		require.NoError(t, err)
		sum += v
	}
	require.NoError(t, lines.Err())
	return sum
}

// AwaitLeading waits until a service has its lock.
func AwaitLeading(t testing.TB, s *localstack.Service) {
	t.Helper()
	Eventually(t, 30*time.Second, s.Name()+" leads", func() bool { return Metric(t, s, "ax_lead_leading_bool") == 1 })
}
