package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// figure is one measured number. Ceiling and Ratio stand beside those that the bare driver bounds.
type figure struct {
	Figure  string  `json:"figure"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Ceiling float64 `json:"ceiling,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	Store   string  `json:"store"`
	Note    string  `json:"note,omitempty"`
}

// report prints one JSON line per figure as it is measured, and a table at the end.
type report struct {
	out   io.Writer
	store string
	all   []figure
}

func (r *report) add(f figure) {
	f.Store = r.store
	f.Value, f.Ceiling, f.Ratio = round(f.Value), round(f.Ceiling), round(f.Ratio)
	r.all = append(r.all, f)
	line, err := json.Marshal(f)
	if err != nil {
		panic(fmt.Sprintf("encode a figure: %v", err)) // only NaN can, and that is a fault of the bench
	}
	fmt.Fprintln(r.out, string(line))
}

func (r *report) value(name string, value float64, unit, note string) {
	r.add(figure{Figure: name, Value: value, Unit: unit, Note: note})
}

// latencies adds the percentiles of sorted durations in milliseconds.
func (r *report) latencies(name string, sorted []time.Duration, note string) {
	for _, p := range []float64{50, 95, 99} {
		r.value(fmt.Sprintf("%s_p%.0f", name, p), percentile(sorted, p).Seconds()*1000, "ms", note)
	}
}

func (r *report) table() error {
	fmt.Fprintln(r.out)
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "figure\tvalue\tunit\tceiling\tratio\tnote\n")
	for _, f := range r.all {
		ceiling, ratio := "", ""
		if f.Ceiling != 0 {
			ceiling, ratio = fmt.Sprint(f.Ceiling), fmt.Sprint(f.Ratio)
		}
		fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%s\t%s\n", f.Figure, f.Value, f.Unit, ceiling, ratio, f.Note)
	}
	fmt.Fprintf(w, "\nmeasured on %s\n", r.store)
	return w.Flush()
}

// round keeps three significant digits, more than the machine's noise is worth.
func round(v float64) float64 {
	if v == 0 {
		return 0
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// percentile takes the nearest rank of sorted durations.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(float64(len(sorted)) * p / 100))
	return sorted[max(i, 1)-1]
}

func sorted(d []time.Duration) []time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d
}
