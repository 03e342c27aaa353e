package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// offsetPrograms builds the services and the ledger worker with a clock that CLOCK_OFFSET_SECONDS shifts: time.Now itself, in
// ax and in every library, which AX_TEST_CLOCK_OFFSET does not reach. Durations by the monotonic clock stay as they are, as on a
// machine whose clock is wrong.
func offsetPrograms(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(bin, "offset")
	offsetOnce.Do(func() { offsetErr = buildOffset(dir) })
	require.NoError(t, offsetErr)
	return dir
}

var (
	offsetOnce sync.Once
	offsetErr  error
)

func buildOffset(dir string) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return err
	}
	const read = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	patched := strings.Replace(string(source), read, read+"\tsec += testOffset\n", 1) + `
var testOffset = func() (seconds int64) {
	text, _ := syscall.Getenv("CLOCK_OFFSET_SECONDS")
	sign := int64(1)
	for _, c := range []byte(text) {
		if c == '-' {
			sign = -1
		} else {
			seconds = seconds*10 + int64(c-'0')
		}
	}
	return sign * seconds
}()
`
	patched = strings.Replace(patched, "import (\n", "import (\n\t\"syscall\"\n", 1)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	replacement, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replacement, []byte(patched), 0o644); err != nil {
		return err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: replacement}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, list, 0o644); err != nil {
		return err
	}
	return build(dir, "-overlay", overlay, "./services/...", "./test/ledgerworker")
}
