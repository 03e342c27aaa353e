package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// link is the way from one process to NATS or to the database, which can be cut, slowed, narrowed or made half-open.
type link struct {
	proxy *toxiproxy.Proxy
	url   string // what the process is given instead of the real address
}

// newLink makes the way to what has the given address.
func newLink(name, target string) (*link, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics write to the logger of the whole process
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, name, "127.0.0.1:0", to.Host)
	if err := proxy.Start(); err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	to.Host = proxy.Listen
	return &link{proxy: proxy, url: to.String()}, nil
}

// strike begins a fault.
func (l *link) strike(f fault) error {
	switch f.kind {
	case cut:
		l.proxy.Stop()
		return nil
	case slow:
		for _, way := range []string{"upstream", "downstream"} {
			if err := l.add("latency", way, map[string]int{"latency": 300, "jitter": 200}); err != nil {
				return err
			}
		}
		return nil
	case narrow:
		for _, way := range []string{"upstream", "downstream"} {
			if err := l.add("bandwidth", way, map[string]int{"rate": 1}); err != nil {
				return err
			}
		}
		return nil
	case halfOpen:
		way := "downstream"
		if f.up {
			way = "upstream"
		}
		return l.add("timeout", way, map[string]int{"timeout": 0})
	}
	return fmt.Errorf("a connection cannot suffer %s", f.kind)
}

// heal ends it.
func (l *link) heal(ctx context.Context, f fault) error {
	if f.kind == cut {
		return l.proxy.Start()
	}
	l.proxy.Toxics.ResetToxics(ctx)
	return nil
}

func (l *link) add(what, way string, attributes map[string]int) error {
	body, err := json.Marshal(map[string]any{"type": what, "stream": way, "attributes": attributes})
	if err != nil {
		return err
	}
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(string(body))); err != nil {
		return fmt.Errorf("link %s: %w", l.proxy.Name, err)
	}
	return nil
}

func (l *link) close() { l.proxy.Stop() }
