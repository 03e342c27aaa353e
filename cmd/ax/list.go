package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func newList(s *settings) *cobra.Command {
	req := events.ListRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List tasks, by id from the greatest down", Args: exactly(0),
		Long: "list shows tasks by id from the greatest down. Ids that ax makes for submissions rise with time, so these come newest first.\n" +
			"Ids of your own, and those of schedules (cron:...) and re-runs (ax:...), stand where their letters put them: small letters come before ids that ax made.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("limit") && req.Limit == 0 {
				return events.Invalid("limit", "0", "a whole number from 1 to 1000")
			}
			c, err := s.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			defer cancel()
			page, err := c.List(ctx, req)
			if err != nil {
				return err
			}
			if err := showTasks(cmd.OutOrStdout(), s, page.Tasks); err != nil {
				return err
			}
			if page.Next != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "more: %s\n", nextPage(cmd, page.Next))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&req.Type, "type", "", "only this task type")
	cmd.Flags().StringVar(&req.State, "state", "", "only this state: waiting, pending, running, success, failed or cancelled")
	cmd.Flags().IntVar(&req.Limit, "limit", 50, "tasks a page, 1 to 1000")
	cmd.Flags().StringVar(&req.After, "after", "", "the id after which the page begins")
	return cmd
}

func showTasks(out io.Writer, s *settings, tasks []events.Task) error {
	if s.json {
		for _, t := range tasks {
			if err := printJSON(out, t); err != nil {
				return err
			}
		}
		return nil
	}
	return table(out, "ID\tTYPE\tSTATE\tREASON\tPRIORITY\tATTEMPTS\tCREATED", len(tasks), func(i int) string {
		t := tasks[i]
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", t.ID, t.Type, t.State, t.Reason, t.Priority, t.Attempts, t.CreatedAt)
	})
}

// nextPage is the command that shows what comes behind a page, of the same tasks.
func nextPage(cmd *cobra.Command, after string) string {
	line := "ax list"
	for _, name := range []string{"type", "state", "limit"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed {
			line += " --" + name + " " + flag.Value.String()
		}
	}
	return line + " --after " + after
}

func newWatch(s *settings) *cobra.Command {
	var types, states []string
	var id string
	cmd := &cobra.Command{
		Use: "watch", Short: "Show changes of tasks as they happen, until Ctrl-C", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := validateWatch(types, states, id); err != nil {
				return err
			}
			c, err := s.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			out := cmd.OutOrStdout()
			sub, err := c.Subscribe(cmd.Context(), events.SubscribeOptions{Types: types, States: states, Concurrency: 1},
				func(_ context.Context, e events.Event) error {
					if id != "" && e.ID != id {
						return nil
					}
					if s.json {
						return printJSON(out, e)
					}
					_, err := fmt.Fprintln(out, shown(eventLine(e)))
					return err
				})
			if err != nil {
				return fmt.Errorf("%w; the event stream is made by the services, start them or `ax dev`", err)
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "watching; Ctrl-C ends it")
			<-cmd.Context().Done()
			sub.Stop()
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&types, "type", nil, "only these task types")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only changes to these states: waiting, pending, running, success, failed or cancelled")
	cmd.Flags().StringVar(&id, "id", "", "only this task")
	return cmd
}

// validateWatch refuses what no event ever has: it would be waited for in vain.
func validateWatch(types, states []string, id string) error {
	for _, name := range types {
		if err := task.ValidateType(name); err != nil {
			return intake.Refusal(err)
		}
	}
	for _, name := range states {
		if !task.State(name).Valid() {
			return events.Invalid("state", name, fmt.Sprintf("one of %v", task.States))
		}
	}
	if id != "" && !task.WellFormedID(id) {
		return intake.Refusal(task.ValidateID(id))
	}
	return nil
}

func eventLine(e events.Event) string {
	if e.Gap != nil {
		return fmt.Sprintf("%s  %s  %s  is %s; changes %d to %d can no longer be told", e.At, e.Type, e.ID, e.State, e.Gap.FromSeq, e.Gap.ToSeq)
	}
	from := e.From
	if from == "" {
		from = "new"
	}
	line := fmt.Sprintf("%s  %s  %s  %s -> %s  %s", e.At, e.Type, e.ID, from, e.State, e.Reason)
	if e.Attempt > 0 {
		line += fmt.Sprintf("  attempt %d", e.Attempt)
	}
	if text := errorText(e.Error); text != "" {
		line += "  " + text
	}
	return line
}

func newStatus(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the services, the workers, what waits and what needs attention", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			defer cancel()
			stats, err := c.Stats(ctx)
			if err != nil {
				return err
			}
			if s.json {
				return printJSON(cmd.OutOrStdout(), stats)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "oldest due task that nobody took: %.1f s\ndead letters: %d\nworkers: %d\n", stats.BacklogSeconds, stats.DeadLetters, len(stats.Workers))
			for _, a := range stats.Attention {
				fmt.Fprintf(out, "attention: %s\n", shown(a))
			}
			if err := table(out, "SERVICE\tLEADS\tVERSION\tSEEN\tHOST\tPID", len(stats.Services), func(i int) string {
				s := stats.Services[i]
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d", shown(s.Service), yes(s.Leads), shown(s.Version), ago(s.SeenAt, stats.Now), shown(s.Host), s.PID)
			}); err != nil {
				return err
			}
			return table(out, "WORKER\tCHANNEL\tSLOTS\tVERSION\tSEEN\tTYPES", len(stats.Workers), func(i int) string {
				w := stats.Workers[i]
				return fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s", shown(w.ID), w.Channel, w.Slots, shown(w.Version), ago(w.SeenAt, stats.Now), shown(short(w.Types)))
			})
		},
	}
}

// short names a few and counts the rest.
func short(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ",")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}
