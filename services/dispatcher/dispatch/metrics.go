package dispatch

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxLaneSeries bounds the lanes with series of their own: type names are the users', and there may be any number.
const maxLaneSeries = 1_000

// otherLanes is the type and the channel under which all further lanes are counted together.
const otherLanes = "other"

// Metrics are the dispatcher's. All but the gauges of the leader stand still while another process leads.
type Metrics struct {
	signals     *prometheus.CounterVec
	tasks       *prometheus.CounterVec
	found       *prometheus.CounterVec
	refills     prometheus.Counter
	resends     prometheus.Counter
	refused     prometheus.Counter
	failed      prometheus.Counter
	walks       prometheus.Counter
	changes     prometheus.Counter
	historyLost prometheus.Counter
	degraded    prometheus.Gauge
	lag         prometheus.Gauge

	mu    sync.Mutex
	lanes map[Lane]struct{} // those with series of their own
}

func newMetrics(reg prometheus.Registerer, counts func() (flying, lanes, backlog, timers int)) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "ax_dispatcher_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	byLabel := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ax_dispatcher_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "ax_dispatcher_" + name, Help: help})
		reg.MustRegister(g)
		return g
	}
	computed := func(name, help string, value func() int) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ax_dispatcher_" + name, Help: help},
			func() float64 { return float64(value()) }))
	}
	computed("in_flight_tasks", "Tasks signalled and not seen to start yet.", func() int { n, _, _, _ := counts(); return n })
	computed("lanes", "Lanes known.", func() int { _, n, _, _ := counts(); return n })
	computed("backlog_lanes", "Lanes that hold more than is signalled and are fed from the collection.", func() int { _, _, n, _ := counts(); return n })
	computed("lanes_full_bool", "1 while lanes hold as many signals as they may, and what else is due waits in the database.", func() int {
		_, _, n, _ := counts()
		return min(n, 1)
	})
	computed("timers", "Tasks that fall due soon and have a timer.", func() int { _, _, _, n := counts(); return n })
	return &Metrics{
		lanes:       make(map[Lane]struct{}),
		signals:     byLabel("signals_total", "Signals sent. Lanes beyond the first 1,000 are counted together as type and channel \"other\".", "type", "channel", "lane"),
		tasks:       byLabel("signalled_tasks_total", "Tasks in the signals sent, by the same labels.", "type", "channel", "lane"),
		found:       byLabel("found_total", "Lanes found to hold due tasks that nobody had signalled.", "by"),
		refills:     counter("refills_total", "Reads of a lane's backlog."),
		resends:     counter("resends_total", "Tasks taken out of flight because their signal seemed to be lost; those that still wait are sent again."),
		refused:     counter("refused_total", "Signals the bus had no room for. Their tasks wait in the database."),
		failed:      counter("publish_failures_total", "Signals that could not be published. Their tasks wait in the database."),
		walks:       counter("walks_total", "Walks through all that is due."),
		changes:     counter("changes_total", "Changes seen on the change stream."),
		historyLost: counter("history_lost_total", "Times the change stream could not continue, so that all that is due was looked at again."),
		degraded:    gauge("degraded_bool", "1 while new tasks are found by the sweep alone."),
		lag:         gauge("stream_lag_seconds", "Age of the newest change when it was seen."),
	}
}

// ofLane returns the counters of a lane: its own ones, or, where there are many lanes already, those of all others.
func (m *Metrics) ofLane(l Lane) (signals, tasks prometheus.Counter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	labels := []string{l.Type, l.Channel, string(l.Lane)}
	if _, own := m.lanes[l]; !own && len(m.lanes) >= maxLaneSeries {
		labels[0], labels[1] = otherLanes, otherLanes
	} else {
		m.lanes[l] = struct{}{}
	}
	return m.signals.WithLabelValues(labels...), m.tasks.WithLabelValues(labels...)
}

// retain deletes the series of all lanes but those given, those that former terms left included.
func (m *Metrics) retain(known map[Lane]*lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := range m.lanes {
		if known[l] == nil {
			delete(m.lanes, l)
			m.signals.DeleteLabelValues(l.Type, l.Channel, string(l.Lane))
			m.tasks.DeleteLabelValues(l.Type, l.Channel, string(l.Lane))
		}
	}
}
