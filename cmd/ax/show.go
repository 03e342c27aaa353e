package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// asking is a command that takes one task id and one answer.
func asking(s *settings, use, short string, do func(ctx context.Context, cmd *cobra.Command, c *client.Client, id string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			defer cancel()
			return do(ctx, cmd, c, args[0])
		},
	}
}

func newGet(s *settings) *cobra.Command {
	return asking(s, "get ID", "Show a task", func(ctx context.Context, cmd *cobra.Command, c *client.Client, id string) error {
		t, err := c.Get(ctx, id)
		if err != nil {
			return err
		}
		return showTask(cmd.OutOrStdout(), s, t)
	})
}

func newHistory(s *settings) *cobra.Command {
	return asking(s, "history ID", "Show every recorded change of a task", func(ctx context.Context, cmd *cobra.Command, c *client.Client, id string) error {
		entries, err := c.History(ctx, id)
		if err != nil {
			return err
		}
		if s.json {
			for _, e := range entries {
				if err := printJSON(cmd.OutOrStdout(), e); err != nil {
					return err
				}
			}
			return nil
		}
		return table(cmd.OutOrStdout(), "SEQ\tAT\tFROM\tTO\tREASON\tBY\tATTEMPT\tERROR", len(entries), func(i int) string {
			e := entries[i]
			return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s", e.Seq, e.At, e.From, e.To, e.Reason, shown(e.By), e.Attempt, errorText(e.Error))
		})
	})
}

func newCancel(s *settings) *cobra.Command {
	return asking(s, "cancel ID", "Cancel a task", func(ctx context.Context, cmd *cobra.Command, c *client.Client, id string) error {
		status, err := c.Cancel(ctx, id)
		if err != nil {
			return err
		}
		if s.json {
			return printJSON(cmd.OutOrStdout(), events.CancelReply{ID: id, Status: status})
		}
		fmt.Fprintln(cmd.OutOrStdout(), status)
		return nil
	})
}

func newRerun(s *settings) *cobra.Command {
	cmd := asking(s, "rerun ID", "Submit the work of an ended task again, as a new task", func(ctx context.Context, cmd *cobra.Command, c *client.Client, id string) error {
		newID, err := c.Rerun(ctx, id)
		if err != nil {
			return err
		}
		if s.json {
			return printJSON(cmd.OutOrStdout(), events.Answer{ID: newID, Accepted: true})
		}
		fmt.Fprintln(cmd.OutOrStdout(), newID)
		return nil
	})
	cmd.Long = "rerun prints the id of the new task. Asked again while that has not ended it prints the same id; once it has ended as well, nothing is\n" +
		"submitted and rerun exits 1: re-run the task it names."
	return cmd
}

func newWait(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "wait ID", Short: "Wait for a task's end and show it; exit 1 unless it succeeded", Args: exactly(1),
		Long: "wait returns when the task has ended, or after --timeout when that is given.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			return waitAndShow(cmd, c, s, args[0])
		},
	}
}

// waitAndShow waits without bound unless --timeout was given: a task takes as long as it takes.
func waitAndShow(cmd *cobra.Command, c *client.Client, s *settings, id string) error {
	ctx := cmd.Context()
	if cmd.Flags().Changed("timeout") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	t, err := c.Wait(ctx, id)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			state := "not ended"
			if t.State != "" {
				state = "still " + t.State
			}
			return fmt.Errorf("task %s is %s after %v; it goes on, wait again with `ax wait %s`", id, state, s.timeout, id)
		}
		return err
	}
	if err := showTask(cmd.OutOrStdout(), s, t); err != nil {
		return err
	}
	if t.State != "success" {
		return fmt.Errorf("task %s ended %s (%s)", t.ID, t.State, t.Reason)
	}
	return nil
}

func showTask(out io.Writer, s *settings, t events.Task) error {
	if s.json {
		return printJSON(out, t)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, shown(value))
		}
	}
	line("id", t.ID)
	line("type", t.Type)
	line("state", fmt.Sprintf("%s (%s)", t.State, t.Reason))
	line("priority", fmt.Sprint(t.Priority))
	line("attempts", fmt.Sprintf("%d started, %d of %d failures, %d of %d losses", t.Attempts, t.Failures, t.MaxAttempts, t.Losses, t.MaxLosses))
	line("created", t.CreatedAt)
	line("scheduled", t.ScheduledAt)
	line("started", t.StartedAt)
	line("finished", t.FinishedAt)
	line("worker", t.WorkerID)
	line("lease until", t.LeaseUntil)
	line("cancel asked", t.CancelRequestedAt)
	line("progress", string(t.Progress))
	line("payload", sized(t.Payload, t.PayloadSize))
	line("result", sized(t.Result, t.ResultSize))
	line("last error", errorText(t.LastError))
	line("biz key", t.BizKey)
	for _, k := range sortedKeys(t.Labels) {
		line("label "+shown(k), t.Labels[k])
	}
	line("re-run of", t.RerunOf)
	return w.Flush()
}

// sized shows JSON, or what is known of it when an answer had no room for it.
func sized(text json.RawMessage, leftOut int) string {
	if leftOut > 0 {
		return fmt.Sprintf("%d bytes, left out", leftOut)
	}
	return string(text)
}

func errorText(e *events.EventError) string {
	switch {
	case e == nil:
		return ""
	case e.Code != "":
		return shown(fmt.Sprintf("%s [%s]", e.Message, e.Code))
	}
	return shown(e.Message)
}

// table prints aligned columns. Cells must be safe for a terminal.
func table(out io.Writer, header string, rows int, row func(int) string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for i := range rows {
		fmt.Fprintln(w, row(i))
	}
	return w.Flush()
}

// ago is how long before now a time of the API was, for people. Both are the database's: this host's clock may be wrong.
func ago(at, now string) string {
	then, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return shown(at)
	}
	until, err := time.Parse(time.RFC3339, now)
	if err != nil { // a submitter of an older version does not tell the time
		return shown(at)
	}
	return max(0, until.Sub(then)).Round(time.Second).String() + " ago"
}
