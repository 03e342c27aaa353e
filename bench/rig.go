package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

const slots = 100

// rig is ax as it is deployed, at shipped defaults: NATS, the five services and one worker as processes of their own, and an event
// subscriber in this one.
type rig struct {
	dir    string
	mongo  *localstack.Mongo
	nats   *localstack.NATSProcess
	system *localstack.System
	worker *localstack.Service
	client *client.Client
	store  *mongostore.Store
	ended  atomic.Int64 // completion events received
}

// startRig starts everything on a fresh database of a running server.
func startRig(ctx context.Context, bin, dir string, mongo *localstack.Mongo, database string) (_ *rig, err error) {
	r := &rig{dir: dir, mongo: mongo}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	if r.nats, err = localstack.StartNATSProcess(ctx, localstack.NATSProcessOptions{Path: localstack.ServicePath(bin, "natsd"),
		NATSOptions: localstack.NATSOptions{Dir: filepath.Join(dir, "nats")}}); err != nil {
		return nil, err
	}
	if r.system, err = localstack.StartSystem(ctx, localstack.SystemOptions{Bin: bin, MongoURI: mongo.URI(), Database: database, NATSURL: r.nats.URL()}); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if r.worker, err = localstack.StartService(ctx, localstack.ServiceOptions{Name: "worker", Path: self, Args: []string{workerCommand},
		Env: append(r.system.Env(), envLedger+"="+r.ledger(), fmt.Sprintf("%s=%d", envSlots, slots))}); err != nil {
		return nil, err
	}
	if err := r.worker.WaitReady(ctx); err != nil {
		return nil, err
	}
	if r.client, err = client.Connect(client.Options{NATSURL: r.nats.URL(), Name: "ax-bench"}); err != nil {
		return nil, err
	}
	if r.store, err = mongostore.Open(ctx, mongostore.Options{URI: mongo.URI(), Database: database, AppName: "ax-bench"}); err != nil {
		return nil, err
	}
	_, err = r.client.Subscribe(ctx, events.SubscribeOptions{States: []string{string(task.Success), string(task.Failed)}, Remember: 1 << 18, MaxPending: 5000},
		func(context.Context, events.Event) error {
			r.ended.Add(1)
			return nil
		})
	return r, err
}

func (r *rig) ledger() string { return filepath.Join(r.dir, "worker.ledger") }

func (r *rig) stop() error {
	var errs []error
	if r.client != nil {
		errs = append(errs, r.client.Close())
	}
	if r.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		errs = append(errs, r.store.Close(ctx))
	}
	if r.worker != nil {
		errs = append(errs, r.worker.Stop(20*time.Second))
	}
	if r.system != nil {
		errs = append(errs, r.system.Stop(15*time.Second))
	}
	if r.nats != nil {
		errs = append(errs, r.nats.Stop(10*time.Second))
	}
	return errors.Join(errs...)
}

// pids are those of every process: the services, the worker, NATS, the database and this one.
func (r *rig) pids() map[string]int {
	pids := map[string]int{"worker": r.worker.PID(), "nats": r.nats.PID(), "bench": os.Getpid()}
	if !r.mongo.External() {
		pids["database"] = r.mongo.PID()
	}
	for _, name := range localstack.ServiceNames {
		pids[name] = r.system.Service(name).PID()
	}
	return pids
}

// usage looks at all of them.
func (r *rig) usage() (map[string]usage, error) {
	all := map[string]usage{}
	for name, pid := range r.pids() {
		u, err := usageOf(pid)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = u
	}
	return all, nil
}

// onlyServices are the five services of ax.
func onlyServices(all map[string]usage) map[string]usage {
	some := map[string]usage{}
	for _, name := range localstack.ServiceNames {
		some[name] = all[name]
	}
	return some
}

// starts are the executions the worker noted, read once it has noted n of them since the given place.
func (r *rig) starts(ctx context.Context, skip, n int) ([]ledger.Execution, error) {
	var runs []ledger.Execution
	err := until(ctx, time.Minute, func() (bool, error) {
		all, err := ledger.Read(nil, r.ledger())
		if err != nil || len(all) < skip+n {
			return false, err
		}
		runs = all[skip:]
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %d starts of the worker: %w", n, err)
	}
	return runs, nil
}

// until asks again and again until it is so.
func until(ctx context.Context, most time.Duration, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, err := so()
		if ok || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
