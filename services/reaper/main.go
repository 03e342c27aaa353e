// Command reaper ends executions whose worker is gone, tasks past their deadline or expiry, and cancels that were ignored, and archives
// what ended long ago.
package main

import (
	"context"
	"sync"
	"time"

	"github.com/ax-scheduler/ax/internal/connect"
	"github.com/ax-scheduler/ax/internal/lead"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/services/reaper/archive"
	"github.com/ax-scheduler/ax/services/reaper/reap"
)

const service = "reaper"

func main() {
	var c Config
	process.Main(service, &c, func(ctx context.Context, p *process.Process) error { return setUp(ctx, p, c) })
}

func setUp(ctx context.Context, p *process.Process, c Config) error {
	store, err := connect.Store(ctx, p, service, c.Common)
	if err != nil {
		return err
	}
	me := lead.Identity()
	cursors := []string{"dispatcher", "notifier"}
	r := reap.New(reap.Config{
		By: me, Lease: c.Lease, Beat: c.Beat, Grace: c.Grace, Every: c.Every, Batch: c.Batch,
		Cursors: cursors, CursorLimit: c.CursorLimit,
	}, store, p.Registry, p.Log)
	archiver := archive.New(archive.Config{
		Keep:  map[task.State]time.Duration{task.Success: c.KeepSuccess, task.Failed: c.KeepFailed, task.Cancelled: c.KeepCancelled},
		Purge: c.KeepArchived, Cursors: cursors, Batch: c.ArchiveBatch, Every: c.ArchiveEvery,
	}, store, p.Registry, p.Log)
	p.Go("watch", r.Watch)
	p.Go("lead", func(ctx context.Context) error {
		return lead.Run(ctx, store, lead.Options{
			Name: service, Owner: me, TTL: c.LockTTL, Log: p.Log, Note: r.Note, Registry: p.Registry,
		}, func(ctx context.Context, lease task.Lease) error {
			var archiving sync.WaitGroup
			defer archiving.Wait()
			archiving.Go(func() { archiver.Run(ctx) })
			return r.Lead(ctx, lease)
		})
	})
	return nil
}
