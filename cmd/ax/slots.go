package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/cronexpr"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

const maxSlots = 10_000

// slotFlags say which slots are shown.
type slotFlags struct{ count int }

func (f *slotFlags) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.count, "count", 10, fmt.Sprintf("how many, 1 to %d", maxSlots))
}

func (f *slotFlags) check() error {
	if f.count < 1 || f.count > maxSlots {
		return usageError{fmt.Errorf("--count %d is not allowed: 1 to %d", f.count, maxSlots)}
	}
	return nil
}

func newScheduleNext(s *settings) *cobra.Command {
	var f slotFlags
	var zone, from string
	cmd := &cobra.Command{
		Use: "next EXPR", Short: "Print the slots of a cron expression, without a server; exit 2 if it is not one", Args: exactly(1),
		Long: "next prints the next slots of an expression, one RFC 3339 line each in its zone, computed by the code that fires them.\n\n" +
			"  ax schedule next '30 2 * * *' --zone Europe/Berlin --from 2026-03-28T00:00:00Z --count 3\n\n" +
			"The slots of \"@every\" are counted from --from here; those of a stored schedule from when it was stored.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			after := time.Now()
			if from != "" {
				var err error
				if after, err = time.Parse(time.RFC3339, from); err != nil {
					return usageError{fmt.Errorf("--from %q is not allowed: a time with a zone such as 2026-03-28T00:00:00Z", from)}
				}
			}
			expr, err := cronexpr.Parse(args[0], zone)
			if err != nil {
				return usageError{err}
			}
			return printSlots(cmd.OutOrStdout(), s, expr.Anchored(after), after, zone, f.count)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&zone, "zone", "", "IANA time zone; default UTC")
	cmd.Flags().StringVar(&from, "from", "", "the slots after this time (RFC 3339); default now, by this machine's clock")
	return cmd
}

func newSchedulePreview(s *settings) *cobra.Command {
	var f slotFlags
	cmd := asking(s, "preview NAME", "Print the next slots of a stored schedule", func(ctx context.Context, cmd *cobra.Command, c *client.Client, name string) error {
		if err := f.check(); err != nil {
			return err
		}
		stored, err := c.GetSchedule(ctx, name)
		if err != nil {
			return err
		}
		return preview(cmd.OutOrStdout(), s, stored, f.count)
	})
	f.add(cmd)
	return cmd
}

// preview goes on from the next slot as it is stored, which is where firing goes on.
func preview(out io.Writer, s *settings, stored events.Schedule, count int) error {
	if stored.Broken != "" {
		return fmt.Errorf("schedule %s does not fire: %s", stored.Name, stored.Broken)
	}
	next, err := time.Parse(time.RFC3339, stored.NextAt)
	if err != nil {
		return fmt.Errorf("schedule %s has no next slot", stored.Name)
	}
	expr, err := cronexpr.Parse(stored.Cron, stored.Zone)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", stored.Name, err)
	}
	return printSlots(out, s, expr.Anchored(next), next.Add(-time.Second), stored.Zone, count)
}

func printSlots(out io.Writer, s *settings, expr cronexpr.Schedule, after time.Time, zone string, count int) error {
	loc, err := time.LoadLocation(zone) // which has been parsed before
	if err != nil {
		return fmt.Errorf("zone %s: %w", zone, err)
	}
	for range count {
		if after = expr.Next(after); after.IsZero() {
			return nil
		}
		text := after.In(loc).Format(time.RFC3339)
		if s.json {
			if err := printJSON(out, map[string]string{"at": text}); err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}
