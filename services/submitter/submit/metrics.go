package submit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/task"
)

type metrics struct {
	accepted, duplicate prometheus.Counter
	refused             *prometheus.CounterVec
	setAside            prometheus.Counter
	batch, insert       prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "ax_submitter_" + name, Help: help})
	}
	m := &metrics{
		accepted:  counter("accepted_total", "Submissions stored as new tasks."),
		duplicate: counter("duplicate_total", "Submissions that had been stored before."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ax_submitter_refused_total", Help: "Submissions refused, by error code.",
		}, []string{"code"}),
		setAside: counter("set_aside_total", "Submissions that the database refused while it took others; they are tried again later."),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ax_submitter_batch_tasks", Help: "Tasks in one insert.", Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
		insert: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ax_submitter_insert_seconds", Help: "How long an insert took.", Buckets: prometheus.ExponentialBuckets(.001, 2, 15),
		}),
	}
	reg.MustRegister(m.accepted, m.duplicate, m.refused, m.setAside, m.batch, m.insert)
	return m
}

func (m *metrics) inserted(n int, took time.Duration) {
	m.batch.Observe(float64(n))
	m.insert.Observe(took.Seconds())
}

func (m *metrics) settled(s task.InsertStatus) {
	switch s {
	case task.Inserted:
		m.accepted.Inc()
	case task.Duplicate, task.Held: // a held key that is refused is counted as a refusal besides
		m.duplicate.Inc()
	}
}
