package worker

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what a worker does. Types and lanes are the only labels with values from outside, and both are bounded.
type metrics struct {
	tasks          *prometheus.CounterVec   // by type and outcome
	runSeconds     *prometheus.HistogramVec // by type
	pickupSeconds  *prometheus.HistogramVec // by lane
	slots          prometheus.Gauge
	busy           prometheus.Gauge
	abandoned      prometheus.Gauge
	unrecorded     prometheus.Gauge
	signals        *prometheus.CounterVec // by lane
	returned       prometheus.Counter
	found          prometheus.Counter
	claimed        *prometheus.CounterVec // by result: won, lost
	claimSeconds   prometheus.Histogram
	claimsUnknown  prometheus.Counter
	finishSeconds  prometheus.Histogram
	finishFailures prometheus.Counter
	givenUp        prometheus.Counter
	beatFailures   prometheus.Counter
	leaseLost      prometheus.Counter
	fenced         prometheus.Counter
}

var (
	fastBuckets = prometheus.ExponentialBuckets(0.001, 2, 14) // 1 ms to 8 s
	runBuckets  = prometheus.ExponentialBuckets(0.001, 4, 11) // 1 ms to 17 min
)

// newMetrics registers the metrics, or takes over those that another worker of the process has registered. A nil registerer
// keeps them from being shown.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := registrar{reg: reg}
	m := &metrics{
		tasks:          counters(&r, "tasks_total", "Attempts that ended, by what was reported.", "type", "outcome"),
		runSeconds:     histograms(&r, "run_seconds", "How long handlers ran.", runBuckets, "type"),
		pickupSeconds:  histograms(&r, "pickup_seconds", "From the time a first attempt was due to its handler's start, by the database's clock.", fastBuckets, "lane"),
		slots:          gauge(&r, "slots", "Handlers that may run at the same time."),
		busy:           gauge(&r, "busy_slots", "Handlers that have not returned."),
		abandoned:      gauge(&r, "abandoned_handlers", "Handlers that have not returned although their attempt is over."),
		unrecorded:     gauge(&r, "unrecorded_results", "Results that wait to be recorded."),
		signals:        counters(&r, "signals_total", "Signals received.", "lane"),
		returned:       counter(&r, "signals_returned_total", "Signals given back, whole or in part, because no slot was free."),
		found:          counter(&r, "tasks_found_total", "Tasks found in the database when no signals came."),
		claimed:        counters(&r, "claimed_total", "Tasks that were asked for, by whether this worker got them.", "result"),
		claimSeconds:   histogram(&r, "claim_seconds", "How long claims took.", fastBuckets),
		claimsUnknown:  counter(&r, "claims_unknown_total", "Claims without an answer."),
		finishSeconds:  histogram(&r, "finish_seconds", "How long it took to record a batch of results.", fastBuckets),
		finishFailures: counter(&r, "finish_failures_total", "Batches of results that had to be sent again."),
		givenUp:        counter(&r, "results_given_up_total", "Results that could not be recorded before the lease was over."),
		beatFailures:   counter(&r, "heartbeat_failures_total", "Heartbeats without an answer."),
		leaseLost:      counter(&r, "lease_lost_total", "Executions that had become invalid before they were reported."),
		fenced:         counter(&r, "fenced_total", "Handlers cancelled because no heartbeat was confirmed in time."),
	}
	return m, errors.Join(r.problems...)
}

type registrar struct {
	reg      prometheus.Registerer
	problems []error
}

// register returns the collector to be used.
func register[C prometheus.Collector](r *registrar, c C) C {
	if r.reg == nil {
		return c
	}
	err := r.reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if former, ok := already.ExistingCollector.(C); ok {
			return former
		}
	}
	if err != nil {
		r.problems = append(r.problems, err)
	}
	return c
}

const (
	namespace = "ax"
	subsystem = "worker"
)

func counters(r *registrar, name, help string, labels ...string) *prometheus.CounterVec {
	return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels))
}

func counter(r *registrar, name, help string) prometheus.Counter {
	return register(r, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}))
}

func gauge(r *registrar, name, help string) prometheus.Gauge {
	return register(r, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}))
}

func histograms(r *registrar, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}, labels))
}

func histogram(r *registrar, name, help string, buckets []float64) prometheus.Histogram {
	return register(r, prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}))
}

// observe brings the gauges up to date.
func (e *engine) observe() {
	running, _ := e.intake.busy()
	e.metrics.slots.Set(float64(e.opts.Slots))
	e.metrics.busy.Set(float64(running))
	e.metrics.abandoned.Set(float64(e.runs.abandoned()))
	e.metrics.unrecorded.Set(float64(e.finisher.count.Load()))
}

// pickup notes how long a task's first attempt waited.
func (e *engine) pickup(x *execution) {
	if x.task.Attempts != 1 {
		return
	}
	now, _, err := e.store.Now()
	if err != nil {
		return
	}
	due := x.task.ScheduledAt
	if x.task.CreatedAt.After(due) {
		due = x.task.CreatedAt
	}
	e.metrics.pickupSeconds.WithLabelValues(string(x.task.Lane())).Observe(max(0, now.Sub(due)).Seconds())
}
