package localstack

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ax-scheduler/ax/scripts"
)

// Versions of the local database that ax was tried with. scripts/local-db names the same ones; a test compares them.
const (
	rustVersion  = "0.5.3-beta.177"
	wheelVersion = "0.7.0b3"
)

// cacheDir is where the local database is kept between runs, outside any checkout.
func cacheDir() (string, error) {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the cache folder: %w", err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "ax"), nil
}

func rustServer(cache string) string {
	return filepath.Join(cache, "secantusd-rs-"+rustVersion, "bin", "secantusd-rs")
}

func wheelServer(cache string) string {
	return filepath.Join(cache, "secantusdb-py-"+wheelVersion, "bin", "secantusd-py")
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// missingTools names what of the given commands is not on PATH.
func missingTools(names ...string) []string {
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// install runs scripts/local-db, the one place that knows how the local database is built or fetched.
func install(ctx context.Context, how string, log io.Writer) error {
	c := exec.CommandContext(ctx, "bash", "-s", "--", how)
	c.Stdin = strings.NewReader(scripts.LocalDB)
	c.Stdout, c.Stderr = log, log
	if err := c.Run(); err != nil {
		return fmt.Errorf("install the local database (scripts/local-db %s): %w", how, err)
	}
	return nil
}
