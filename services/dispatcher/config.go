package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/process"
)

// Config is the dispatcher's configuration.
type Config struct {
	process.WithNATS
	Sweep   time.Duration `envconfig:"DISPATCHER_SWEEP" default:"2s" min:"100ms" max:"1m" desc:"pause between two looks at what has fallen due, which is how late a task may start whose change or signal was lost"`
	Horizon time.Duration `envconfig:"DISPATCHER_HORIZON" default:"5s" min:"1s" max:"10m" desc:"how far ahead a task gets a timer of its own; at least twice AX_DISPATCHER_SWEEP"`
	Walk    time.Duration `envconfig:"DISPATCHER_WALK" default:"1m" min:"1s" max:"1h" desc:"pause between two walks through all that is due, which find what both the change stream and the sweep have missed"`
	LockTTL time.Duration `envconfig:"DISPATCHER_LOCK_TTL" default:"10s" min:"1s" max:"5m" desc:"how long the leader's lock outlives its last renewal, which is how long a killed leader is missed"`
}

// Check refuses addresses that can never work, and settings that make sense alone but not together.
func (c *Config) Check() error {
	err := connect.Check(c.WithNATS)
	if c.Horizon < 2*c.Sweep {
		err = errors.Join(err, fmt.Errorf("AX_DISPATCHER_HORIZON is %v: give at least twice AX_DISPATCHER_SWEEP, %v, or delayed tasks start late", c.Horizon, 2*c.Sweep))
	}
	return err
}
