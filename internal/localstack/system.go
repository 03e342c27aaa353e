package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// SystemOptions say how the services are started.
type SystemOptions struct {
	Bin      string   // folder with one program per service
	MongoURI string   // database that all of them use
	Database string   // its name; empty: "ax"
	NATSURL  string   // bus that all of them use
	Env      []string // further "AX_...=..." for all of them
	// EnvOf holds further ones for one service, by its name. They win over those for all.
	EnvOf    map[string][]string
	Services []string // nil: [ServiceNames]
	// FirstPort serves the first service's health page, the next one the second's, and so on; 0: free ports.
	FirstPort int
	Output    func(service string) io.Writer // receives a service's output; nil: only the newest is kept
}

// System is a set of running services, each a process of its own.
type System struct {
	opts     SystemOptions
	services map[string]*Service
}

// StartSystem starts the services beside each other and returns when all are ready. What was started is stopped again when
// one of them fails.
func StartSystem(ctx context.Context, opts SystemOptions) (*System, error) {
	if opts.Services == nil {
		opts.Services = ServiceNames
	}
	s := &System{opts: opts, services: map[string]*Service{}}
	for i, name := range opts.Services {
		path := ServicePath(opts.Bin, name)
		if _, err := os.Stat(path); err != nil {
			s.Stop(0)
			return nil, fmt.Errorf("start the services: no program %s; `make build` makes it: %w", path, err)
		}
		o := ServiceOptions{Name: name, Path: path, Env: append(s.Env(), opts.EnvOf[name]...)}
		if opts.FirstPort != 0 {
			o.Env = append(o.Env, fmt.Sprintf("AX_HTTP_ADDR=127.0.0.1:%d", opts.FirstPort+i))
		}
		if opts.Output != nil {
			o.Log = opts.Output(name)
		}
		one, err := StartService(ctx, o)
		if err != nil {
			s.Stop(0)
			return nil, fmt.Errorf("start the services: %w", err)
		}
		s.services[name] = one
	}
	if err := s.WaitReady(ctx); err != nil {
		s.Stop(0)
		return nil, fmt.Errorf("start the services: %w", err)
	}
	return s, nil
}

// Env is what a service, a worker or the command line needs to reach the same database and bus.
func (s *System) Env() []string {
	env := []string{"AX_MONGO_URI=" + s.opts.MongoURI, "AX_NATS_URL=" + s.opts.NATSURL}
	if s.opts.Database != "" {
		env = append(env, "AX_MONGO_DB="+s.opts.Database)
	}
	return append(env, s.opts.Env...)
}

// Service returns one of the services by name; nil when it was not started.
func (s *System) Service(name string) *Service { return s.services[name] }

// WaitReady waits until every service that runs is ready.
func (s *System) WaitReady(ctx context.Context) error {
	return s.each(func(one *Service) error {
		if !one.Running() {
			return nil
		}
		return one.WaitReady(ctx)
	})
}

// Stop asks all services to end, beside each other, and kills what has not ended within grace.
func (s *System) Stop(grace time.Duration) error {
	return s.each(func(one *Service) error { return one.Stop(grace) })
}

func (s *System) each(do func(*Service) error) error {
	errs := make([]error, len(s.opts.Services))
	var all sync.WaitGroup
	for i, name := range s.opts.Services {
		if one := s.services[name]; one != nil {
			all.Go(func() { errs[i] = do(one) })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}
