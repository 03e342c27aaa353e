package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
)

const exportTimeout = 24 * time.Hour

// exportFlags say what is exported.
type exportFlags struct {
	database
	kind, since, until string
}

func newExport(s *settings) *cobra.Command {
	f := &exportFlags{}
	cmd := &cobra.Command{
		Use: "export", Short: "Print archived tasks as JSON, one a line", Args: exactly(0),
		Long: "export prints tasks of the archive, whole but for their histories, one JSON document a line, in no order: those that ended from --since on\n" +
			"and before --until. It needs the database alone, and changes nothing.\n\n  ax export --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z > january.jsonl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			timeout := exportTimeout
			if cmd.Flags().Changed("timeout") {
				timeout = s.timeout
			}
			return f.run(cmd, timeout)
		},
	}
	f.database.flags(cmd)
	cmd.Flags().StringVar(&f.kind, "type", "", "only this task type")
	cmd.Flags().StringVar(&f.since, "since", "", "only what ended then or later: a time such as 2026-01-31T08:00:00Z, or how long ago, such as 24h")
	cmd.Flags().StringVar(&f.until, "until", "", "only what ended before, in the same form")
	return cmd
}

func (f *exportFlags) run(cmd *cobra.Command, timeout time.Duration) error {
	if err := given(cmd); err != nil {
		return err
	}
	if f.kind != "" {
		if err := task.ValidateType(f.kind); err != nil {
			return usageError{fmt.Errorf("--type: %w", err)}
		}
	}
	since, sinceAgo, err := moment("--since", f.since)
	if err != nil {
		return err
	}
	until, untilAgo, err := moment("--until", f.until)
	if err != nil {
		return err
	}
	if err := f.database.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	store, err := f.open(ctx, "ax-export")
	if err != nil {
		return err
	}
	defer store.Close(context.WithoutCancel(ctx))
	now, _, err := store.Now()
	if err != nil {
		return err
	}
	if sinceAgo > 0 {
		since = now.Add(-sinceAgo)
	}
	if untilAgo > 0 {
		until = now.Add(-untilAgo)
	}
	n := 0
	err = store.EachArchived(ctx, f.kind, since, until, func(tasks []*task.Task) error {
		for _, t := range tasks {
			if err := printJSON(cmd.OutOrStdout(), intake.View(t)); err != nil {
				return err
			}
		}
		n += len(tasks)
		return nil
	})
	fmt.Fprintf(cmd.ErrOrStderr(), "%d tasks\n", n)
	return err
}
