// Package ledger is the ground truth of tests and the demo: handlers write what they do into a file of their own process,
// and the files are compared with what ax says happened. One document's history cannot show two executions that overlap;
// the ledger can, because all its times are of the machine's one monotonic clock.
//
// Each record is one line of JSON, written by one append, so that a process killed at any moment leaves whole lines.
package ledger

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of records.
const (
	Started = "start"
	Ended   = "end"
	// Fenced says until when an execution is valid unless a later one extends it: At lies ahead. One is written for the claim and
	// for each acknowledged heartbeat, because a process that is stopped cannot write that its time is over.
	Fenced = "fence"
)

// Record is one line: a handler began or ended, or its time was extended.
type Record struct {
	Kind      string `json:"kind"`
	At        int64  `json:"at"` // nanoseconds of the machine's monotonic clock
	Worker    string `json:"worker"`
	Task      string `json:"task"`
	Type      string `json:"type"`
	Attempt   int    `json:"attempt"`
	Execution string `json:"execution"`
	Lane      string `json:"lane,omitempty"`
	Waited    int64  `json:"waited,omitempty"`  // of a start: nanoseconds since the task was published, where known
	Outcome   string `json:"outcome,omitempty"` // of an end: ok, error, or the cause that ended the context
}

// Now reads the machine's monotonic clock, which all processes share.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("read the monotonic clock: %v", err)) // the kernel always has it
	}
	return ts.Nano()
}

// Until is a moment by this process's monotonic clock as the records have it.
func Until(t time.Time) int64 { return Now() + int64(time.Until(t)) }

// Writer appends the records of one process.
type Writer struct {
	mu   sync.Mutex
	file *os.File
	name string
}

// Open creates or continues a ledger file. Worker names the process in each record.
func Open(path, worker string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return &Writer{file: f, name: worker}, nil
}

// Write stamps a record with the worker and, unless it carries one, the time, and appends it.
func (w *Writer) Write(r Record) error {
	r.Worker = w.name
	if r.At == 0 {
		r.At = Now()
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }
