package connect

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/ax-scheduler/ax/internal/lead"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/internal/task"
)

const (
	beatEvery   = 5 * time.Second
	beatTimeout = 3 * time.Second
)

// announce has the process registered with how it fares, until it stops. A beat that fails is no news of its own: /readyz and the log
// tell of a database that is away.
func announce(p *process.Process, service string, store *mongostore.Store) {
	host, _ := os.Hostname() // without one the entry has none
	info := task.ServiceInfo{ID: service + "/" + lead.Identity(), Service: service, Host: host, PID: os.Getpid(), Version: process.Version}
	p.OnStop("roster", func(ctx context.Context) error {
		_ = store.RemoveService(ctx, info.ID) // else it is forgotten in an hour
		return nil
	})
	p.Go("roster", func(ctx context.Context) error {
		for {
			info.Leads, info.Conditions = condition(ctx, p)
			beat, cancel := context.WithTimeout(ctx, beatTimeout)
			_ = store.BeatService(beat, info)
			cancel()
			timer := time.NewTimer(beatEvery*9/10 + rand.N(beatEvery/5))
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
		}
	})
}

// condition gathers what the process shows of itself elsewhere: what /readyz waits for, and of its metrics the gauges that are 1 while
// something is so, whose help says what, and breakers that are not closed.
func condition(ctx context.Context, p *process.Process) (leads bool, phrases []string) {
	for _, w := range p.Waiting(ctx) {
		phrases = append(phrases, "waits for "+w.Name+": "+w.Reason)
	}
	families, _ := p.Registry.Gather() // what can be gathered is
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch name := f.GetName(); {
			case m.GetGauge().GetValue() == 0:
			case name == lead.Metric:
				leads = true
			case name == "ax_bus_breaker_state":
				phrases = append(phrases, "the circuit breaker "+label(m, "name")+" is not closed")
			case strings.HasSuffix(name, "_bool"):
				phrases = append(phrases, strings.TrimSuffix(strings.TrimPrefix(f.GetHelp(), "1 while "), "."))
			}
		}
	}
	slices.Sort(phrases)
	return leads, phrases
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
