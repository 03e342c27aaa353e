package e2e

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
)

// said is what a command printed, and how it ended.
type said struct {
	code      int
	out, errs string
}

// ax runs the command line to its end.
func (w *world) ax(t *testing.T, stdin string, args ...string) said {
	t.Helper()
	return runAx(t, w.nats.URL(), stdin, args...)
}

func runAx(t *testing.T, natsURL, stdin string, args ...string) said {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), localstack.ServicePath(bin, "ax"), args...)
	cmd.Env = append(withoutAX(), "AX_NATS_URL="+natsURL)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return said{exit.ExitCode(), out.String(), errs.String()}
	}
	require.NoError(t, err)
	return said{0, out.String(), errs.String()}
}
