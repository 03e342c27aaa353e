package main

import (
	"time"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/process"
)

// Config is the notifier's configuration.
type Config struct {
	process.WithNATS
	SaveEvery  time.Duration `envconfig:"NOTIFIER_SAVE_EVERY" default:"1s" min:"50ms" max:"1m" desc:"how often the place in the change stream is stored while events flow; after a crash so much is published again"`
	IdleEvery  time.Duration `envconfig:"NOTIFIER_IDLE_EVERY" default:"30s" min:"1s" max:"10m" desc:"how often it is stored while nothing happens"`
	SweepEvery time.Duration `envconfig:"NOTIFIER_SWEEP_EVERY" default:"5s" min:"100ms" max:"10m" desc:"pause between sweeps for changes where the database has no change streams"`
	LockTTL    time.Duration `envconfig:"NOTIFIER_LOCK_TTL" default:"10s" min:"1s" max:"5m" desc:"how long the leader's lock outlives its last renewal, which is how long a killed leader is missed"`
}

// Check refuses addresses that can never work.
func (c *Config) Check() error { return connect.Check(c.WithNATS) }
