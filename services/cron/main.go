// Command cron turns the slots of schedules into tasks.
package main

import (
	"context"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/lead"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/services/cron/schedule"
)

const service = "cron"

func main() {
	var c Config
	process.Main(service, &c, func(ctx context.Context, p *process.Process) error { return setUp(ctx, p, c) })
}

func setUp(ctx context.Context, p *process.Process, c Config) error {
	store, err := connect.Store(ctx, p, service, c.Common)
	if err != nil {
		return err
	}
	cron := schedule.New(schedule.Config{Every: c.Every, Page: c.Batch}, store, p.Registry, p.Log)
	p.Go("lead", func(ctx context.Context) error {
		return lead.Run(ctx, store, lead.Options{
			Name: service, Owner: lead.Identity(), TTL: c.LockTTL, Log: p.Log, Registry: p.Registry,
		}, cron.Lead)
	})
	return nil
}
