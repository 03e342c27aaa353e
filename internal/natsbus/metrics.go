package natsbus

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are shared by all parts of a bus.
type metrics struct {
	published  *prometheus.CounterVec // by result
	retries    prometheus.Counter
	inflight   prometheus.Gauge
	breaker    *prometheus.GaugeVec // by name: 0 closed, 1 half-open, 2 open
	reconnects prometheus.Counter
	slow       prometheus.Counter
	rebuilds   *prometheus.CounterVec // by stream
	created    *prometheus.CounterVec // by stream
	requests   *prometheus.HistogramVec
}

// newMetrics makes them, or finds those of another bus in the same process.
func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label}))
	}
	return &metrics{
		published:  counters("ax_bus_published_total", "Messages published to streams, by result: stored, duplicate, full, open, refused or failed.", "result"),
		retries:    counter("ax_bus_publish_retries_total", "Messages sent again because the first acknowledgement did not come."),
		inflight:   register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "ax_bus_publish_inflight", Help: "Messages sent and not acknowledged yet."})),
		breaker:    register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ax_bus_breaker_state", Help: "Circuit breakers: 0 closed, 1 half-open, 2 open."}, []string{"name"})),
		reconnects: counter("ax_bus_reconnects_total", "Times the connection to NATS was renewed."),
		slow:       counter("ax_bus_slow_consumer_total", "Times the client dropped messages of core NATS because they were not taken fast enough."),
		rebuilds:   counters("ax_bus_consumer_rebuilds_total", "Times a consumer was looked up or made again after an error.", "stream"),
		created:    counters("ax_bus_streams_created_total", "Streams created, at set-up or because they were missing.", "stream"),
		requests: register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ax_bus_request_seconds",
			Help: "Time to answer requests of ax.api, by endpoint and code (ok or an error code).", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10)}, []string{"endpoint", "code"})),
	}
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	if err := reg.Register(c); err != nil {
		if other, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
			if same, ok := other.ExistingCollector.(C); ok {
				return same
			}
		}
		panic(err) // two metrics of one name and different form: a mistake in this package
	}
	return c
}
