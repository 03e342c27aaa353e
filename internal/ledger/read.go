package ledger

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// Execution is one run of a handler, joined from its records.
type Execution struct {
	Record        // of the start
	End    int64  // nanoseconds; of the handler's return or its process's death, of its last fence when that came first, else [OpenEnded]
	Result string // outcome of the end; "killed" when the process died, "fenced" when its time was over, "" when none is known
}

// Running tells whether nothing had ended the execution by a moment of the records' clock: its last fence may lie ahead of it.
func (e Execution) Running(at int64) bool {
	return e.End == OpenEnded || e.Result == Stale && e.End > at
}

// OpenEnded is the End of an execution that nothing ended.
const OpenEnded = int64(1<<63 - 1)

// Killed is the Result of an execution whose process died before the handler returned.
const Killed = "killed"

// Stale is the Result of an execution whose time was over, by its last fence, before its handler returned or its process died.
const Stale = "fenced"

// Read joins the records of several files. Deaths holds the time at which a worker's process was seen to be gone: what it
// had not ended lasted until then. A line that is no record is an error, except for a last line without an end, which a
// full disk can leave.
func Read(deaths map[string]int64, paths ...string) ([]Execution, error) {
	byID, fences := map[string]*Execution{}, map[string]int64{}
	var order []*Execution
	for _, path := range paths {
		records, err := readFile(path)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			key := r.Worker + "/" + r.Execution
			e := byID[key]
			switch {
			case r.Kind == Fenced: // the first one stands before the start
				fences[key] = max(fences[key], r.At)
			case r.Kind == Started && e != nil:
				return nil, fmt.Errorf("read ledger %s: execution %s started twice on %s", path, r.Execution, r.Worker)
			case r.Kind == Started:
				e = &Execution{Record: r, End: OpenEnded}
				byID[key], order = e, append(order, e)
			case e == nil:
				return nil, fmt.Errorf("read ledger %s: execution %s ended without a start", path, r.Execution)
			case e.End == OpenEnded:
				e.End, e.Result = r.At, r.Outcome
			}
		}
	}
	out := make([]Execution, 0, len(order))
	for _, e := range order {
		if died, ok := deaths[e.Worker]; ok && e.End == OpenEnded {
			e.End, e.Result = died, Killed
		}
		if fence, ok := fences[e.Worker+"/"+e.Execution]; ok && fence < e.End {
			e.End, e.Result = fence, Stale
		}
		out = append(out, *e)
	}
	return out, nil
}

func readFile(path string) ([]Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	defer f.Close()
	var out []Record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var bad error
	for lines.Scan() {
		if bad != nil {
			return nil, bad
		}
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			bad = fmt.Errorf("read ledger %s: line %d: %w", path, len(out)+1, err)
			continue
		}
		out = append(out, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read ledger %s: %w", path, err)
	}
	return out, nil
}

// Overlap is a pair of executions of one task that ran at the same time.
type Overlap struct{ First, Second Execution }

// Overlaps returns every pair of neighbouring executions of one task of which the second began before the first had ended.
func Overlaps(all []Execution) []Overlap {
	byTask := map[string][]Execution{}
	for _, e := range all {
		byTask[e.Task] = append(byTask[e.Task], e)
	}
	var out []Overlap
	for _, runs := range byTask {
		slices.SortFunc(runs, func(a, b Execution) int { return int(min(1, max(-1, a.At-b.At))) })
		last := runs[0] // the one that ended latest so far
		for _, e := range runs[1:] {
			if e.At < last.End {
				out = append(out, Overlap{last, e})
			}
			if e.End > last.End {
				last = e
			}
		}
	}
	return out
}
