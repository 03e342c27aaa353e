// Package programs builds the programs that the tests of whole systems run as processes.
package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Offset is the environment variable that shifts the clock of a program built by [Shifted], in whole seconds.
const Offset = "CLOCK_OFFSET_SECONDS"

// Build builds programs of this module, given as arguments of go build, into a folder. Root is the module's folder.
func Build(root, dir string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", dir + string(filepath.Separator)}, args...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// Shifted builds programs with a clock that [Offset] shifts: time.Now itself, in ax and in every library, which
// AX_TEST_CLOCK_OFFSET does not reach. Durations by the monotonic clock stay as they are, as on a machine whose clock is wrong.
func Shifted(root, dir string, args ...string) error {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("find the sources of Go: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return fmt.Errorf("shift the clock: %w", err)
	}
	const read = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if !strings.Contains(string(source), read) {
		return errors.New("shift the clock: time.Now of this Go is not the one known here")
	}
	patched := strings.Replace(string(source), read, read+"\tsec += testOffset\n", 1) + `
var testOffset = func() (seconds int64) {
	text, _ := syscall.Getenv("` + Offset + `")
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
		return fmt.Errorf("shift the clock: %w", err)
	}
	replacement, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replacement, []byte(patched), 0o644); err != nil {
		return fmt.Errorf("shift the clock: %w", err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: replacement}})
	if err != nil {
		return fmt.Errorf("shift the clock: %w", err)
	}
	if err := os.WriteFile(overlay, list, 0o644); err != nil {
		return fmt.Errorf("shift the clock: %w", err)
	}
	return Build(root, dir, append([]string{"-overlay", overlay}, args...)...)
}
