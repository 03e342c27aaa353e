package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/pkg/events"
)

func newList(s *settings) *cobra.Command {
	req := events.ListRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List tasks, newest first", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
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
			if s.json {
				for _, t := range page.Tasks {
					if err := printJSON(cmd.OutOrStdout(), t); err != nil {
						return err
					}
				}
				return nil
			}
			err = table(cmd.OutOrStdout(), "ID\tTYPE\tSTATE\tREASON\tPRIORITY\tATTEMPTS\tCREATED", len(page.Tasks), func(i int) string {
				t := page.Tasks[i]
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", t.ID, t.Type, t.State, t.Reason, t.Priority, t.Attempts, t.CreatedAt)
			})
			if err == nil && page.Next != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "more: ax list --after %s\n", page.Next)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&req.Type, "type", "", "only this task type")
	cmd.Flags().StringVar(&req.State, "state", "", "only this state: waiting, pending, running, success, failed or cancelled")
	cmd.Flags().IntVar(&req.Limit, "limit", 50, "tasks a page, 1 to 1000")
	cmd.Flags().StringVar(&req.After, "after", "", "the id after which the page begins")
	return cmd
}

func newWatch(s *settings) *cobra.Command {
	var types, states []string
	var id string
	cmd := &cobra.Command{
		Use: "watch", Short: "Show changes of tasks as they happen, until Ctrl-C", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
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
					_, err := fmt.Fprintln(out, eventLine(e))
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
	cmd.Flags().StringSliceVar(&states, "state", nil, "only changes to these states")
	cmd.Flags().StringVar(&id, "id", "", "only this task")
	return cmd
}

func eventLine(e events.Event) string {
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
		Use: "status", Short: "Show the workers and what waits", Args: exactly(0),
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
			if len(stats.Workers) == 0 {
				return nil
			}
			return table(out, "WORKER\tCHANNEL\tSLOTS\tVERSION\tSEEN\tTYPES", len(stats.Workers), func(i int) string {
				w := stats.Workers[i]
				return fmt.Sprintf("%s\t%s\t%d\t%s\t%s ago\t%s", shown(w.ID), w.Channel, w.Slots, shown(w.Version), ago(w.SeenAt), short(w.Types))
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
