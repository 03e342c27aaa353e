package main

import (
	"time"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/process"
)

// Config is cron's configuration.
type Config struct {
	process.Common
	Every   time.Duration `envconfig:"CRON_EVERY" default:"1s" min:"50ms" max:"10s" desc:"how often due schedules are looked for; a slot in between is fired at its time"`
	Batch   int           `envconfig:"CRON_BATCH" default:"500" min:"1" max:"1000" desc:"schedules held in memory and fired at once"`
	LockTTL time.Duration `envconfig:"CRON_LOCK_TTL" default:"10s" min:"1s" max:"5m" desc:"how long the leader's lock outlives its last renewal, which is how long a killed leader is missed"`
}

// Check refuses an address that can never work.
func (c *Config) Check() error { return connect.CheckStore(c.Common) }
