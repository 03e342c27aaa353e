package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/test/programs"
)

const (
	database = "ax"
	slots    = 20
	grace    = 20 * time.Second // to stop in order
)

// programList are what a run needs in its folder of programs, built by [programs.Shifted].
var programList = []string{"./cmd/ax", "./services/...", "./test/natsd", "./test/ledgerworker"}

// world is the whole system: two of every service and some workers, each with a link of its own to NATS and to the database.
type world struct {
	bin, dir string
	log      io.Writer
	clocks   map[string]int
	mongo    *localstack.Mongo
	nats     *localstack.NATSProcess
	links    map[string]*link // "<process>->nats", "<process>->mongo"
	systems  []*localstack.System
	client   *client.Client
	nc       *nats.Conn // straight to NATS, for faults among the signals
	store    *mongostore.Store

	mu      sync.Mutex
	procs   map[string]*localstack.Service // by the names of the script
	lives   map[string]int                 // of workers: each life is a worker of its own
	deaths  map[string]int64               // of the lives of workers, by the ledger's clock
	killed  map[string]bool
	ledgers []string
	wipes   []int64
	exited  []string
	outputs []*os.File
	said    []string    // by ax verify
	found   []violation // by ax verify
	ids     []string    // of tasks for faults among the signals
}

// startWorld starts everything. What was started is stopped again when a part of it fails.
func startWorld(ctx context.Context, bin, dir string, s script, log io.Writer) (_ *world, err error) {
	w := &world{bin: bin, dir: dir, log: log, clocks: s.clocks, links: map[string]*link{}, procs: map[string]*localstack.Service{},
		lives: map[string]int{}, deaths: map[string]int64{}, killed: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	if w.mongo, err = localstack.StartMongo(ctx, localstack.MongoOptions{Log: log, AllowBuild: true}); err != nil {
		return nil, err
	}
	if w.mongo.External() {
		return nil, fmt.Errorf("chaos: %w", localstack.ErrExternal)
	}
	if w.nats, err = localstack.StartNATSProcess(ctx, localstack.NATSProcessOptions{Path: localstack.ServicePath(bin, "natsd"),
		NATSOptions: localstack.NATSOptions{Dir: filepath.Join(dir, "nats")}}); err != nil {
		return nil, err
	}
	for _, name := range processNames() {
		for other, url := range map[string]string{"nats": w.nats.URL(), "mongo": w.mongo.URI()} {
			if w.links[name+"->"+other], err = newLink(name+"->"+other, url); err != nil {
				return nil, err
			}
		}
	}
	for i := range replicas {
		envOf := map[string][]string{}
		for _, service := range localstack.ServiceNames {
			envOf[service] = w.env(fmt.Sprintf("%s/%d", service, i))
		}
		system, err := localstack.StartSystem(ctx, localstack.SystemOptions{Bin: bin, MongoURI: w.mongo.URI(), NATSURL: w.nats.URL(), Database: database,
			Env: tuning(), EnvOf: envOf, Output: func(service string) io.Writer { return w.output(fmt.Sprintf("%s-%d", service, i)) }})
		if err != nil {
			return nil, err
		}
		w.systems = append(w.systems, system)
		for _, service := range localstack.ServiceNames {
			w.procs[fmt.Sprintf("%s/%d", service, i)] = system.Service(service)
		}
	}
	if w.store, err = mongostore.Open(ctx, mongostore.Options{URI: w.mongo.URI(), Database: database, AppName: "chaos"}); err != nil {
		return nil, err
	}
	if w.client, err = client.Connect(client.Options{NATSURL: w.nats.URL(), Name: "chaos"}); err != nil {
		return nil, err
	}
	if w.nc, err = nats.Connect(w.nats.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond)); err != nil {
		return nil, err
	}
	for i := range workers {
		if err := w.startWorker(ctx, fmt.Sprintf("worker/%d", i)); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// tuning are the settings of all services: leases and locks short enough for a pause to outlast them.
func tuning() []string {
	env := []string{"AX_REAPER_LEASE=" + lease.String(), "AX_REAPER_BEAT=" + (lease / 5).String()}
	for _, service := range []string{"DISPATCHER", "REAPER", "NOTIFIER", "CRON"} {
		env = append(env, "AX_"+service+"_LOCK_TTL="+lockTTL.String())
	}
	return env
}

// env is what one process sees of the world.
func (w *world) env(name string) []string {
	return []string{"AX_MONGO_URI=" + w.links[name+"->mongo"].url, "AX_NATS_URL=" + w.links[name+"->nats"].url, "AX_MONGO_DB=" + database,
		fmt.Sprintf("%s=%d", programs.Offset, w.clocks[name])}
}

// startWorker starts the next life of a worker.
func (w *world) startWorker(ctx context.Context, name string) error {
	w.mu.Lock()
	w.lives[name]++
	life := w.life(name)
	file := filepath.Join(w.dir, life+".ledger")
	w.mu.Unlock()
	s, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: life, Log: w.output(life), Path: localstack.ServicePath(w.bin, "ledgerworker"),
		Env: append(w.env(name), "LEDGER_FILE="+file, "LEDGER_NAME="+life, fmt.Sprintf("LEDGER_SLOTS=%d", slots), "LEDGER_TYPES="+workType+","+tickType,
			"LEDGER_LEASE="+lease.String())})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[name] = s
	w.ledgers = append(w.ledgers, file)
	return nil
}

// output is a file for what a process says, beside the ledgers. Without one the newest output is kept in memory only.
func (w *world) output(name string) io.Writer {
	f, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		fmt.Fprintf(w.log, "the output of %s is not kept: %v\n", name, err)
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outputs = append(w.outputs, f)
	return f
}

// life names the present life of a worker. The caller holds mu.
func (w *world) life(name string) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(name, "/", "-"), w.lives[name])
}

func (w *world) proc(name string) *localstack.Service {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[name]
}

// kill ends a process as kill -9 does.
func (w *world) kill(name string) error {
	s := w.proc(name)
	if !s.Running() {
		w.noteExit(name, s)
	}
	w.mu.Lock()
	w.killed[name] = true
	w.mu.Unlock()
	if err := s.Kill(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.HasPrefix(name, "worker/") {
		w.deaths[w.life(name)] = ledger.Now()
	}
	return nil
}

// revive starts it again.
func (w *world) revive(ctx context.Context, name string) error {
	var err error
	if strings.HasPrefix(name, "worker/") {
		err = w.startWorker(ctx, name)
	} else {
		err = w.proc(name).Start(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killed[name] = false
	return err
}

func (w *world) noteExit(name string, s *localstack.Service) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exited = append(w.exited, fmt.Sprintf("%s ended by itself (%v); its last output:\n%s", name, s.ExitError(), s.Output()))
}

// checkAlive notes processes that ended by themselves.
func (w *world) checkAlive() {
	for _, name := range processNames() {
		if s := w.proc(name); !s.Running() && !w.killed[name] {
			w.noteExit(name, s)
		}
	}
}

// stop ends everything that was started.
func (w *world) stop() error {
	var errs []error
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, s := range w.procs {
		all.Go(func() {
			err := errors.Join(s.Signal(syscall.SIGCONT), s.Stop(grace))
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	all.Wait()
	http.DefaultClient.CloseIdleConnections()
	if w.nc != nil {
		w.nc.Close()
	}
	if w.client != nil {
		errs = append(errs, w.client.Close())
	}
	if w.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		errs = append(errs, w.store.Close(ctx))
	}
	for _, l := range w.links {
		if l != nil {
			l.close()
		}
	}
	if w.nats != nil {
		errs = append(errs, w.nats.Kill())
	}
	if w.mongo != nil {
		errs = append(errs, w.mongo.Stop())
	}
	for _, f := range w.outputs {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
