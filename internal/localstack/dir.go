package localstack

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// scratch is a temporary data folder. It is locked while its owner lives, so that a folder left behind by a process
// that was killed can be told from one in use and removed by the next one.
type scratch struct {
	path string
	lock *os.File
}

const (
	scratchPrefix = "ax-stack-"
	scratchLock   = "owner.lock"
	// A folder this young may belong to a process that has not locked it yet.
	scratchMinAge = time.Minute
)

func newScratch() (*scratch, error) {
	removeAbandoned()
	path, err := os.MkdirTemp("", scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a data folder: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, scratchLock), os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	return &scratch{path: path, lock: lock}, nil
}

func (s *scratch) remove() error {
	err := os.RemoveAll(s.path)
	s.lock.Close()
	if err != nil {
		return fmt.Errorf("remove the data folder: %w", err)
	}
	return nil
}

// removeAbandoned deletes what killed processes left. Failures are left to the next one.
func removeAbandoned() {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*"))
	for _, path := range old {
		info, err := os.Stat(path)
		if err != nil || time.Since(info.ModTime()) < scratchMinAge {
			continue
		}
		lock, err := lockFile(filepath.Join(path, scratchLock), 0)
		if err != nil {
			continue
		}
		_ = os.RemoveAll(path)
		lock.Close()
	}
}

func lockFile(path string, create int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|create, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
