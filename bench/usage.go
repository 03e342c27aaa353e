package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTicks is the unit of CPU times in /proc; it is 100 a second on every Linux that Go runs on.
const clockTicks = 100

// usage is what a process has used so far.
type usage struct {
	cpu time.Duration // user and system
	rss int64         // bytes resident now
}

// usageOf reads a process of this machine; Linux only.
func usageOf(pid int) (usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("read usage: %w", err)
	}
	// The name, in brackets, may hold spaces; the fields after it are numbered from 3.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 22 {
		return usage{}, fmt.Errorf("read usage: /proc/%d/stat has %d fields", pid, len(fields))
	}
	var n [3]int64
	for i, field := range []int{11, 12, 21} { // utime, stime, rss in pages
		if n[i], err = strconv.ParseInt(fields[field], 10, 64); err != nil {
			return usage{}, fmt.Errorf("read usage: %w", err)
		}
	}
	return usage{cpu: time.Duration(n[0]+n[1]) * time.Second / clockTicks, rss: n[2] * int64(os.Getpagesize())}, nil
}

// spent is the CPU that processes used since an earlier look, together and each.
func spent(before, after map[string]usage) (total time.Duration) {
	for name, now := range after {
		total += now.cpu - before[name].cpu
	}
	return total
}
