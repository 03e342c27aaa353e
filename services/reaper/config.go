package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/process"
)

// Config is the reaper's configuration.
type Config struct {
	process.Common
	Lease         time.Duration `envconfig:"REAPER_LEASE" default:"30s" min:"1s" max:"1h" desc:"longest lease of any worker; so long nothing is revived after the database was out of reach or its clock moved"`
	Beat          time.Duration `envconfig:"REAPER_BEAT" default:"5s" min:"100ms" max:"10m" desc:"time between a worker's heartbeats; the database counts as out of reach after a longer silence"`
	Grace         time.Duration `envconfig:"REAPER_GRACE" default:"1500ms" min:"0s" max:"1m" desc:"how long after its end a lease counts as over"`
	Every         time.Duration `envconfig:"REAPER_EVERY" default:"1s" min:"50ms" max:"1m" desc:"pause between sweeps, up to twice as long while nothing is due"`
	Batch         int           `envconfig:"REAPER_BATCH" default:"500" min:"1" max:"1000" desc:"tasks ended by one write"`
	CursorLimit   time.Duration `envconfig:"REAPER_CURSOR_LIMIT" default:"1h" min:"1m" max:"168h" desc:"age of the dispatcher's or notifier's place in the change stream that raises an alarm"`
	KeepSuccess   time.Duration `envconfig:"REAPER_KEEP_SUCCESS" default:"168h" min:"1h" max:"87600h" desc:"how long after its end a task that succeeded stays among the others before it is archived"`
	KeepFailed    time.Duration `envconfig:"REAPER_KEEP_FAILED" default:"168h" min:"1h" max:"87600h" desc:"the same for tasks that failed for good"`
	KeepCancelled time.Duration `envconfig:"REAPER_KEEP_CANCELLED" default:"168h" min:"1h" max:"87600h" desc:"the same for cancelled tasks"`
	KeepArchived  time.Duration `envconfig:"REAPER_KEEP_ARCHIVED" default:"8760h" min:"2h" max:"876000h" desc:"how long after its end a task is deleted from the archive"`
	ArchiveBatch  int           `envconfig:"REAPER_ARCHIVE_BATCH" default:"200" min:"1" max:"1000" desc:"tasks archived at a time"`
	ArchiveEvery  time.Duration `envconfig:"REAPER_ARCHIVE_EVERY" default:"1m" min:"50ms" max:"1h" desc:"pause while there is nothing to archive"`
	LockTTL       time.Duration `envconfig:"REAPER_LOCK_TTL" default:"10s" min:"1s" max:"5m" desc:"how long the leader's lock outlives its last renewal, which is how long a killed leader is missed"`
}

// Check refuses an address that can never work, and settings that make sense alone but not together.
func (c *Config) Check() error {
	err := connect.CheckStore(c.Common)
	if c.Beat*3 > c.Lease {
		err = errors.Join(err, errors.New("AX_REAPER_LEASE must be at least three times AX_REAPER_BEAT: a worker must be able to miss a beat"))
	}
	if most := max(c.KeepSuccess, c.KeepFailed, c.KeepCancelled); c.KeepArchived <= most {
		err = errors.Join(err, fmt.Errorf("AX_REAPER_KEEP_ARCHIVED is %v, and must be longer than %v, after which tasks get into the archive", c.KeepArchived, most))
	}
	return err
}
