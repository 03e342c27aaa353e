package dispatch

import (
	"log/slog"
	"sync/atomic"
)

// mode is how changes are learned: from the stream, or, degraded, from the sweep alone.
type mode struct {
	streaming atomic.Bool
	said      atomic.Bool // whether degraded was logged
	metrics   *Metrics
	log       *slog.Logger
}

func (m *mode) set(streaming bool, reason string) {
	was := m.streaming.Swap(streaming)
	switch {
	case streaming && (!was || m.said.Load()):
		m.said.Store(false)
		m.metrics.degraded.Set(0)
		m.log.Info("following the change stream")
	case !streaming && !m.said.Swap(true):
		m.metrics.degraded.Set(1)
		m.log.Warn("degraded: new tasks are found by the sweep alone", "reason", reason)
	}
}
