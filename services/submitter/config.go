package main

import (
	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/process"
)

// Config is the submitter's configuration.
type Config struct {
	process.WithNATS
	Batch    int `envconfig:"SUBMITTER_BATCH" default:"500" min:"1" max:"1000" desc:"most tasks in one insert; a lone submission never waits for others"`
	Requests int `envconfig:"SUBMITTER_REQUESTS" default:"64" min:"1" max:"1000" desc:"requests to ax.api handled side by side"`
}

// Check refuses addresses that can never work.
func (c *Config) Check() error { return connect.Check(c.WithNATS) }
