package process

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkTimeout bounds one look at whether the process is ready.
const checkTimeout = 2 * time.Second

// Wait is one thing a process waits for before it is ready.
type Wait struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

type readiness struct {
	Ready      bool   `json:"ready"`
	WaitingFor []Wait `json:"waitingFor,omitempty"`
}

// health knows what the process waits for.
type health struct {
	mu     sync.Mutex
	waits  map[string]string // name -> reason, kept by the process itself: starting, stopping, Retry
	checks []check
}

type check struct {
	name string
	fn   func(ctx context.Context) error
}

// wait notes that the process is not ready for this reason, until done.
func (h *health) wait(name, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits[name] = reason
}

func (h *health) done(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waits, name)
}

func (h *health) add(c check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, c)
}

// waiting runs all checks at once and lists what the process waits for, by name.
func (h *health) waiting(ctx context.Context) []Wait {
	h.mu.Lock()
	checks := slices.Clone(h.checks)
	var out []Wait
	for name, reason := range h.waits {
		out = append(out, Wait{Name: name, Reason: reason})
	}
	h.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	failed := make([]error, len(checks))
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() { failed[i] = guard(func() error { return c.fn(ctx) }) })
	}
	running.Wait()
	for i, err := range failed {
		if err != nil {
			out = append(out, Wait{Name: checks[i].name, Reason: Redact(err.Error())})
		}
	}
	slices.SortFunc(out, func(a, b Wait) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// handler serves /healthz (the process runs), /readyz (it can do its work; else 503 and what it waits for) and
// /metrics.
func (p *Process) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"service": p.service, "version": Version})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		waits := p.health.waiting(r.Context())
		status := http.StatusOK
		if len(waits) > 0 {
			status = http.StatusServiceUnavailable
		}
		answer(w, status, readiness{Ready: len(waits) == 0, WaitingFor: waits})
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.Registry, promhttp.HandlerOpts{Registry: p.Registry}))
	return mux
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The caller is gone when this fails; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(body)
}
