package schedule

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

type metrics struct {
	slots  *prometheus.CounterVec
	missed prometheus.Counter
	broken prometheus.Counter
	late   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "ax_cron_" + name, Help: help})
	}
	m := &metrics{
		slots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ax_cron_slots_total", Help: "Slots fired: new when a task was stored, existing when its id was there already.",
		}, []string{"task"}),
		missed: counter("missed_total", "Times that a schedule had missed slots and passed over some or all of them."),
		broken: counter("broken_total", "Schedules that were disabled because they cannot fire."),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ax_cron_late_seconds", Help: "How long after its time a slot fired, by the database's clock.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 600, 3600},
		}),
	}
	reg.MustRegister(m.slots, m.missed, m.broken, m.late)
	return m
}

func (m *metrics) fired(status task.InsertStatus) {
	if status == task.Inserted {
		m.slots.WithLabelValues("new").Inc()
		return
	}
	m.slots.WithLabelValues("existing").Inc()
}
