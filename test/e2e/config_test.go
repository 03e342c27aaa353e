package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/process"
)

// Every service refuses to start with a bad setting, for each of its variables, and says which one and what it takes.
func TestServicesRefuseBadConfiguration(t *testing.T) {
	for _, name := range localstack.ServiceNames {
		t.Run(name, func(t *testing.T) {
			var known []process.Variable
			_, out, errs := service(t, name, []string{"--variables"})
			require.NoError(t, json.Unmarshal([]byte(out), &known), errs)
			refused := func(variable, value string, says ...string) {
				t.Helper()
				code, _, errs := service(t, name, nil, "AX_MONGO_URI=mongodb://127.0.0.1:1", "AX_NATS_URL=nats://127.0.0.1:1", variable+"="+value)
				require.Equal(t, process.ExitConfig, code, "%s=%s: %s", variable, value, errs)
				require.Contains(t, errs, "1 problem in the configuration of the "+name)
				require.NotContains(t, errs, "hush", "a password is not shown")
				for _, part := range append(says, variable) {
					require.Contains(t, errs, part)
				}
			}
			durations := 0
			for _, v := range known {
				if len(v.Name) > len("AX_LOG_LEVEL") {
					refused(v.Name[:len(v.Name)-1], "1", "did you mean "+v.Name+"?") // a letter is missing
				}
				switch {
				case strings.HasPrefix(v.Range, "a duration"):
					durations++
					refused(v.Name, "30", v.Range) // without a unit; taken for any other it would be nanoseconds
					if v.Name == "AX_TEST_CLOCK_OFFSET" {
						continue // may be nothing or negative
					}
					refused(v.Name, "-1s", v.Range)
					if v.Name != "AX_REAPER_GRACE" { // may be nothing
						refused(v.Name, "0s", v.Range)
					}
				case strings.HasPrefix(v.Range, "a whole number"):
					refused(v.Name, "0", v.Range)
					refused(v.Name, "-5", v.Range)
					refused(v.Name, "many", v.Range)
				}
			}
			require.Positive(t, durations)

			for _, uri := range []string{"127.0.0.1:1", "mongodb://ax:hush@127.0.0.1:port", "mongodb://ax:hush@127.0.0.1:1/?readPreference=nearest"} {
				refused("AX_MONGO_URI", uri, "AX_MONGO_URI is not allowed: ")
			}
			for _, database := range []string{"$x/ y", "a.b", "café", "admin", "local", "config", strings.Repeat("x", 64)} {
				refused("AX_MONGO_DB", database, "1 to 63 characters of A-Z a-z 0-9 _ -")
			}
			refused("AX_HTTP_ADDR", "7801", "host:port")
			needsNATS := slices.ContainsFunc(known, func(v process.Variable) bool { return v.Name == "AX_NATS_URL" })
			require.Equal(t, name != "reaper" && name != "cron", needsNATS, "these two do without NATS")
			if needsNATS {
				refused("AX_NATS_URL", "nats://ax:hush@127.0.0.1:port", "AX_NATS_URL is not allowed: ")
			}
		})
	}
	code, _, errs := service(t, "reaper", nil, "AX_MONGO_URI=mongodb://127.0.0.1:1", "AX_NATS_URL=nats://127.0.0.1:1", "AX_REAPER_LEASE=6s")
	require.Equal(t, process.ExitConfig, code)
	require.Contains(t, errs, "AX_REAPER_LEASE must be at least three times AX_REAPER_BEAT")
	code, _, errs = service(t, "dispatcher", nil, "AX_MONGO_URI=mongodb://127.0.0.1:1", "AX_NATS_URL=nats://127.0.0.1:1", "AX_DISPATCHER_HORIZON=2s")
	require.Equal(t, process.ExitConfig, code)
	require.Contains(t, errs, "at least twice AX_DISPATCHER_SWEEP")
}

// withoutAX is the environment of this process less its own AX_ variables.
func withoutAX() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AX_") })
}

// service runs a service's program to its end.
func service(t *testing.T, name string, args []string, env ...string) (code int, out, errs string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), localstack.ServicePath(bin, name), args...)
	cmd.Env = append(withoutAX(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok {
		require.NoError(t, err)
	} else {
		return exit.ExitCode(), stdout.String(), stderr.String()
	}
	return 0, stdout.String(), stderr.String()
}
