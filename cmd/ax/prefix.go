package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// prefixed puts the lines of several programs into one output, each with its program's name.
type prefixed struct {
	mu  sync.Mutex
	out io.Writer
}

// of returns the writer for one program. Unless level is info, only lines of warnings and errors are shown.
func (p *prefixed) of(name, level string) io.Writer {
	return &prefixedLines{to: p, name: name, all: level == "info"}
}

// prefixedLines gathers one program's lines; it has one writer at a time.
type prefixedLines struct {
	to   *prefixed
	name string
	all  bool
	rest []byte
}

func (w *prefixedLines) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		if w.all || bytes.Contains(line, []byte("level=WARN")) || bytes.Contains(line, []byte("level=ERROR")) || !bytes.Contains(line, []byte("level=")) {
			w.to.mu.Lock()
			_, err := fmt.Fprintf(w.to.out, "%-10s | %s\n", w.name, line)
			w.to.mu.Unlock()
			if err != nil {
				return 0, err
			}
		}
		w.rest = append(w.rest[:0:0], rest...)
	}
}
