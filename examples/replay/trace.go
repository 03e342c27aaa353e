package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// function is one row of the trace: a task type of the replay.
type function struct {
	Type     string
	Trigger  string
	Priority int
	PerMin   []int         // invocations in each recorded minute
	Run      time.Duration // recorded average run time
}

// trace is the recording: functions and the minutes they were called in.
type trace struct {
	functions []function
	minutes   int
}

// The files under the names of this folder, and under those of the full data set.
var fileNames = map[string][2]string{
	"invocations": {"invocations.csv", "functions2019_100_invocations.csv"},
	"durations":   {"durations.csv", "functions2019_100_durations.csv"},
}

// priorities give the replay three lanes: what a person waits for is high, what a timer starts is low.
var priorities = map[string]int{"http": 2, "timer": 8}

// loadTrace reads the two files of a folder and joins them by function.
func loadTrace(dir string) (*trace, error) {
	durations := map[string]time.Duration{}
	err := readCSV(dir, "durations", func(row map[string]string, _ []string) error {
		ms, err := strconv.ParseFloat(row["Average"], 64)
		if err != nil {
			return fmt.Errorf("column Average: %w", err)
		}
		durations[row["HashFunction"]] = time.Duration(ms * float64(time.Millisecond))
		return nil
	})
	if err != nil {
		return nil, err
	}

	t := &trace{}
	err = readCSV(dir, "invocations", func(row map[string]string, header []string) error {
		hash, trigger := row["HashFunction"], row["Trigger"]
		f := function{Trigger: trigger, Priority: 5, Run: durations[hash]}
		if p, ok := priorities[trigger]; ok {
			f.Priority = p
		}
		if len(hash) < 8 {
			return fmt.Errorf("column HashFunction: %q is too short", hash)
		}
		f.Type = trigger + "-" + hash[:8]
		for _, column := range header {
			if _, err := strconv.Atoi(column); err != nil {
				continue // not a minute
			}
			n, err := strconv.Atoi(row[column])
			if err != nil || n < 0 {
				return fmt.Errorf("column %s: %q is no count", column, row[column])
			}
			f.PerMin = append(f.PerMin, n)
		}
		t.minutes = len(f.PerMin)
		t.functions = append(t.functions, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(t.functions) == 0 || t.minutes == 0 {
		return nil, fmt.Errorf("read the trace in %s: it holds no invocations", dir)
	}
	return t, nil
}

func readCSV(dir, what string, each func(row map[string]string, header []string) error) error {
	var f *os.File
	for _, name := range fileNames[what] {
		var err error
		if f, err = os.Open(filepath.Join(dir, name)); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the trace: %w", err)
		}
	}
	if f == nil {
		return fmt.Errorf("read the trace: %s holds neither %s nor %s", dir, fileNames[what][0], fileNames[what][1])
	}
	defer f.Close()
	r := csv.NewReader(f)
	header, err := r.Read()
	if err != nil {
		return fmt.Errorf("read %s: %w", f.Name(), err)
	}
	for line := 2; ; line++ {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", f.Name(), err)
		}
		row := make(map[string]string, len(header))
		for i, column := range header {
			row[column] = cells[i]
		}
		if err := each(row, header); err != nil {
			return fmt.Errorf("read %s: line %d: %w", f.Name(), line, err)
		}
	}
}

// arrival is one invocation of the replay.
type arrival struct {
	At       time.Duration // since the replay's start
	Function int           // index in trace.functions
}

// total counts all invocations.
func (t *trace) total() int {
	n := 0
	for _, f := range t.functions {
		for _, c := range f.PerMin {
			n += c
		}
	}
	return n
}

// arrivals spreads each minute's invocations evenly at random over that minute, with a recorded minute compressed to the
// given length. The same seed gives the same arrivals. share in (0,1] keeps that part of each function's calls, so that a
// slow store can be given less.
func (t *trace) arrivals(minute time.Duration, share float64, seed uint64) []arrival {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var out []arrival
	for i, f := range t.functions {
		for m, n := range f.PerMin {
			for range n {
				at := time.Duration((float64(m) + rnd.Float64()) * float64(minute))
				if rnd.Float64() < share {
					out = append(out, arrival{At: at, Function: i})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b arrival) int { return int(a.At - b.At) })
	return out
}
