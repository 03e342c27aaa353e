package notify

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	events     *prometheus.CounterVec
	dead       *prometheus.CounterVec
	rebuilds   *prometheus.CounterVec
	refused    *prometheus.CounterVec
	gaps       prometheus.Counter
	lag        prometheus.Gauge
	degraded   prometheus.Gauge
	rebuilding prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ax_notifier_" + name + "_total", Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "ax_notifier_" + name, Help: help})
	}
	m := &metrics{
		events:   counters("events", "Events handed to NATS, by the state they tell.", "state"),
		dead:     counters("dead_letters", "Dead letters written or found written, by reason.", "reason"),
		rebuilds: counters("rebuilds", "Times events were made again from history, by cause.", "cause"),
		refused:  counters("refused_submissions", "Submissions that ended in AX_DEAD, by error code.", "code"),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ax_notifier_gaps_total", Help: "Gap events: changes that no history keeps any more and that may never have been published.",
		}),
		lag:        gauge("lag_seconds", "How far publishing is behind the database, by the database's clock."),
		rebuilding: gauge("rebuilding_bool", "1 while events are made again from history."),
		degraded:   gauge("degraded_bool", "1 while events are found by sweeps because the database has no change streams."),
	}
	reg.MustRegister(m.events, m.dead, m.rebuilds, m.refused, m.gaps, m.lag, m.degraded, m.rebuilding)
	return m
}
