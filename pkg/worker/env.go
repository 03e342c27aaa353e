package worker

import (
	"os"
	"time"

	"github.com/ax-scheduler/ax/internal/process"
)

// Env is what [FromEnv] reads: the form of each AX_ variable of a worker, in tags.
type Env struct {
	MongoURI    string        `envconfig:"MONGO_URI" required:"true" secret:"true" desc:"connection string of MongoDB 7.0 or later; a replica set, for change streams and transactions"`
	Database    string        `envconfig:"MONGO_DB" default:"ax" desc:"name of the database"`
	NATSURL     string        `envconfig:"NATS_URL" default:"nats://127.0.0.1:4222" secret:"true" desc:"address of NATS 2.11 or later with JetStream; a worker also works without, only slower"`
	ID          string        `envconfig:"WORKER_ID" desc:"name of the process in the history of its tasks, unlike any other's: 1 to 128 characters of A-Z a-z 0-9 . _ : -; empty: host name, process id and a random part"`
	Channel     string        `envconfig:"WORKER_CHANNEL" default:"stable" desc:"channel whose tasks this worker takes: 1 to 64 characters of a-z 0-9 _ -, beginning with a letter or digit"`
	Version     string        `envconfig:"WORKER_VERSION" desc:"version of the program, shown beside the worker: up to 128 bytes without control characters"`
	Slots       int           `envconfig:"WORKER_SLOTS" default:"20" min:"1" max:"10000" desc:"handlers that run at the same time, over all types"`
	Lease       time.Duration `envconfig:"WORKER_LEASE" default:"30s" min:"1s" max:"1h" desc:"how long a task stays this worker's after its last heartbeat"`
	Beat        time.Duration `envconfig:"WORKER_BEAT" min:"100ms" max:"30m" desc:"time between heartbeats, at most half of the lease; not set: 5s, or a sixth of a lease under 30s"`
	StopTimeout time.Duration `envconfig:"STOP_TIMEOUT" default:"10s" min:"1s" max:"10m" desc:"time to stop in order; what has not ended by then is left to its lease"`
	SoftStop    time.Duration `envconfig:"WORKER_SOFT_STOP" min:"1ms" max:"10m" desc:"how long handlers go on undisturbed after a stop was asked for, at most the stop timeout; not set: a quarter of it"`
}

// FromEnv reads options from the environment: AX_MONGO_URI, AX_MONGO_DB, AX_NATS_URL, AX_STOP_TIMEOUT, AX_WORKER_ID,
// AX_WORKER_CHANNEL, AX_WORKER_VERSION, AX_WORKER_SLOTS, AX_WORKER_LEASE, AX_WORKER_BEAT and AX_WORKER_SOFT_STOP. The error
// names every variable that is missing, misspelt or out of range, with what is allowed.
func FromEnv() (Options, error) {
	// Their defaults depend on other variables; these stand in for them while the ranges are checked.
	e := Env{Beat: defaultBeat, SoftStop: time.Second}
	if err := process.Load("worker", &e); err != nil {
		return Options{}, err
	}
	if _, given := os.LookupEnv("AX_WORKER_BEAT"); !given {
		e.Beat = 0
	}
	if _, given := os.LookupEnv("AX_WORKER_SOFT_STOP"); !given {
		e.SoftStop = 0
	}
	o := Options{MongoURI: e.MongoURI, Database: e.Database, NATSURL: e.NATSURL, ID: e.ID, Channel: e.Channel, Version: e.Version,
		Slots: e.Slots, Lease: e.Lease, Beat: e.Beat, StopTimeout: e.StopTimeout, SoftStop: e.SoftStop}
	_, err := o.complete() // what one variable allows another may forbid
	return o, err
}
