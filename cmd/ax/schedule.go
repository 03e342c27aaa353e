package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

func newSchedule(s *settings) *cobra.Command {
	cmd := &cobra.Command{Use: "schedule", Short: "Tasks that time creates"}
	group(cmd)
	cmd.AddCommand(newSchedulePut(s), newScheduleList(s), newScheduleNext(s), newSchedulePreview(s),
		asking(s, "get NAME", "Show a schedule", func(ctx context.Context, cmd *cobra.Command, c *client.Client, name string) error {
			sc, err := c.GetSchedule(ctx, name)
			if err != nil {
				return err
			}
			return showSchedules(cmd, s, []events.Schedule{sc})
		}),
		asking(s, "delete NAME", "Remove a schedule; tasks that it made stay", func(ctx context.Context, cmd *cobra.Command, c *client.Client, name string) error {
			if err := c.DeleteSchedule(ctx, name); err != nil || !s.json {
				return err
			}
			return printJSON(cmd.OutOrStdout(), events.ScheduleRequest{Name: name})
		}))
	return cmd
}

func newSchedulePut(s *settings) *cobra.Command {
	f := &submitFlags{}
	var zone, misfire, catchUp string
	var catchUpMax int
	cmd := &cobra.Command{
		Use:   "put NAME CRON TYPE",
		Short: "Store a schedule, or replace the one of that name",
		Long: "put stores a schedule: at each slot of CRON a task of TYPE is made.\n\n" +
			"  ax schedule put nightly '30 2 * * *' report --zone Europe/Berlin --payload '{\"kind\":\"daily\"}'\n  ax schedule put poll '@every 90s' poll",
		Args: exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := given(cmd); err != nil {
				return err
			}
			request, err := f.request(cmd.InOrStdin(), args[2])
			if err != nil {
				return err
			}
			c, err := s.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			defer cancel()
			stored, err := c.PutSchedule(ctx, events.Schedule{Name: args[0], Cron: args[1], Zone: zone,
				Misfire: misfire, CatchUp: catchUp, CatchUpMax: catchUpMax, Task: request})
			if err != nil {
				return err
			}
			return showSchedules(cmd, s, []events.Schedule{stored})
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "IANA time zone; default UTC")
	cmd.Flags().StringVar(&misfire, "misfire", "", "slots missed while nothing could fire them: skip, once (the newest) or all; default once")
	cmd.Flags().StringVar(&catchUp, "catch-up", "", "with --misfire all: slots older than this do not fire any more; default 24h")
	cmd.Flags().IntVar(&catchUpMax, "catch-up-max", 0, "with --misfire all: how many missed slots fire, the newest, 1 to 1000; default 100")
	cmd.Flags().StringVar(&f.payload, "payload", "", "JSON for the handler; @FILE reads a file, - standard input")
	cmd.Flags().StringVar(&f.priority, "priority", "", "0 (most urgent) to 9; default 5")
	cmd.Flags().StringVar(&f.timeout, "run-timeout", "", "bound of each attempt; default 30m")
	cmd.Flags().StringVar(&f.attempts, "max-attempts", "", "how often it may fail; default 3")
	cmd.Flags().StringArrayVar(&f.labels, "label", nil, "NAME=VALUE, repeated in every event; may be given several times")
	return cmd
}

func newScheduleList(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List schedules by name", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			defer cancel()
			var all []events.Schedule
			for after := ""; ; {
				page, err := c.ListSchedules(ctx, after)
				if err != nil {
					return err
				}
				all = append(all, page.Schedules...)
				if after = page.Next; after == "" {
					return showSchedules(cmd, s, all)
				}
			}
		},
	}
}

func showSchedules(cmd *cobra.Command, s *settings, all []events.Schedule) error {
	if s.json {
		for _, sc := range all {
			if err := printJSON(cmd.OutOrStdout(), sc); err != nil {
				return err
			}
		}
		return nil
	}
	return table(cmd.OutOrStdout(), "NAME\tCRON\tZONE\tTYPE\tNEXT\tLAST\tBROKEN", len(all), func(i int) string {
		sc := all[i]
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", sc.Name, shown(sc.Cron), sc.Zone, sc.Task.Type, sc.NextAt, sc.LastAt, shown(sc.Broken))
	})
}
