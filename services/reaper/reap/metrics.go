package reap

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

type metrics struct {
	revived     *prometheus.CounterVec
	pauses      *prometheus.CounterVec
	cursorAge   *prometheus.GaugeVec
	expired     prometheus.Counter
	mended      prometheus.Counter
	workersLost prometheus.Counter
	workers     prometheus.Gauge
	overdue     prometheus.Gauge
	duration    prometheus.Histogram
}

// newMetrics registers the metrics; paused is asked at each look at them.
func newMetrics(reg prometheus.Registerer, paused func() bool) *metrics {
	const prefix = "ax_reaper_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name + "_total", Help: help})
	}
	counters := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name + "_total", Help: help}, []string{"reason"})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	m := &metrics{
		revived: counters("revived", "Executions ended because their lease was over, by reason."),
		pauses:  counters("pauses", "Times that sweeps began to pause for one lease, by reason."),
		cursorAge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "cursor_age_seconds", Help: "How old the stored place of a reader of the change stream is.",
		}, []string{"cursor"}),
		expired:     counter("expired", "Tasks that failed because they could not start before their expiry."),
		mended:      counter("mended", "Leases and start times pulled in after the database's clock went back."),
		workersLost: counter("workers_lost", "Workers removed because they stopped beating."),
		workers:     gauge("workers_count", "Registered workers that beat."),
		overdue:     gauge("overdue_seconds", "By how much the oldest task of the last sweep was late, its grace included."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "sweep_seconds", Help: "Duration of one sweep.", Buckets: prometheus.ExponentialBuckets(.001, 3, 9),
		}),
	}
	reg.MustRegister(m.revived, m.pauses, m.cursorAge, m.expired, m.mended, m.workersLost, m.workers, m.overdue, m.duration,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "paused_bool", Help: "1 while nothing is revived because the database's answers cannot be relied on.",
		}, func() float64 {
			if paused() {
				return 1
			}
			return 0
		}))
	return m
}

// count notes which of the tasks read were ended, by reason.
func (m *metrics) count(read []*task.Task, ended []string) {
	reasons := make(map[string]task.Reason, len(read))
	for _, t := range read {
		reasons[t.ID] = reasonOf(t)
	}
	for _, id := range ended {
		m.revived.WithLabelValues(string(reasons[id])).Inc()
	}
}
