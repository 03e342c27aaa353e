package process

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func askedHealth(t *testing.T, addr string) (code int, out, errs string) {
	t.Helper()
	// Nothing but the address is needed, and what is wrong with the rest is not its business.
	cleanEnv(t, "AX_HTTP_ADDR", addr, "AX_REAPER_SWEEP", "nonsense")
	var stdout, stderr bytes.Buffer
	code = mainCode("reaper", &reaperConfig{}, []string{"health"}, &stdout, &stderr, nil)
	return code, stdout.String(), stderr.String()
}

func TestHealthAsksTheRunningProcess(t *testing.T) {
	s := start(t, Common{HTTPAddr: "0.0.0.0:0"}, func(context.Context, *Process) error { return nil })
	_, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	for _, addr := range []string{"0.0.0.0:" + port, ":" + port, "127.0.0.1:" + port, "[::]:" + port, "localhost:" + port} {
		code, out, errs := askedHealth(t, addr)
		require.Equal(t, ExitClean, code, "%s: %s", addr, errs)
		require.Equal(t, "the reaper is healthy\n", out)
	}
	s.stop()
	require.NoError(t, s.wait(t))
	code, _, errs := askedHealth(t, "0.0.0.0:"+port)
	require.Equal(t, ExitFailed, code)
	require.Contains(t, errs, "the reaper is not healthy")
	require.Contains(t, errs, "connection refused")
}

func TestHealthIsNotWhatAnotherProgramAnswers(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	code, _, errs := askedHealth(t, other.Listener.Addr().String())
	require.Equal(t, ExitFailed, code)
	require.Contains(t, errs, "404")
}

func TestHealthNeedsAnAddressThatCanBeAsked(t *testing.T) {
	for addr, want := range map[string]string{"127.0.0.1:0": "any free port", "8080": "missing port"} {
		code, _, errs := askedHealth(t, addr)
		require.Equal(t, ExitFailed, code)
		require.Contains(t, errs, want)
	}
}
