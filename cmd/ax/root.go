package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/pkg/client"
)

const defaultNATSURL = "nats://127.0.0.1:4222"

// settings are the flags every command has.
type settings struct {
	natsURL string
	json    bool
	timeout time.Duration
}

func newRoot() *cobra.Command {
	s := &settings{}
	root := &cobra.Command{
		Use:   "ax",
		Short: "Submit, watch and control background tasks",
		Long: "ax submits, watches and controls background tasks.\n\nTo try it: `ax dev` in one terminal, then in another the AX_NATS_URL that it prints and\n" +
			"  ax submit email --payload '{\"to\":\"a@example.com\"}'\n\nExit codes: 0 done, 1 failed, 2 bad input (nothing was sent or stored).\n`ax verify` has its own.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       process.Version,
	}
	group(root)
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if s.timeout <= 0 {
			return usageError{fmt.Errorf("--timeout is %v; give a time above zero, such as 10s", s.timeout)}
		}
		return nil
	}
	root.SetVersionTemplate("ax {{.Version}}\n")
	root.PersistentFlags().StringVar(&s.natsURL, "nats", cmp.Or(os.Getenv("AX_NATS_URL"), defaultNATSURL), "address of NATS (AX_NATS_URL)")
	root.PersistentFlags().BoolVar(&s.json, "json", false, "print JSON, one document a line")
	root.PersistentFlags().DurationVar(&s.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())}
	})
	root.AddCommand(newDev(), newSubmit(s), newGet(s), newHistory(s), newWait(s), newList(s), newCancel(s), newRerun(s), newWatch(s),
		newStatus(s), newVerify(s), newExport(s), newSchedule(s), newVersion(s))
	return root
}

// group makes a command that has others below it show them, and refuse what is none of them.
func group(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return usageError{fmt.Errorf("unknown command %q; did you mean %s?", args[0], near[0])}
		}
		return usageError{fmt.Errorf("unknown command %q; see `%s --help`", args[0], cmd.CommandPath())}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// checkNATS refuses an address that cannot work. An empty one would stand for the default, whatever AX_NATS_URL says.
func (s *settings) checkNATS() error {
	if s.natsURL == "" {
		return usageError{errors.New("--nats is empty; give the address of NATS, such as nats://127.0.0.1:4222, or leave it out")}
	}
	if err := natsbus.CheckURL(s.natsURL); err != nil {
		return usageError{fmt.Errorf("--nats (AX_NATS_URL) is not allowed: %w", err)}
	}
	return nil
}

// connect reaches NATS, or says what to do.
func (s *settings) connect() (*client.Client, error) {
	if err := s.checkNATS(); err != nil {
		return nil, err
	}
	c, err := client.Connect(client.Options{NATSURL: s.natsURL, Name: "ax-cli"})
	if err != nil {
		return nil, fmt.Errorf("%w; `ax dev` starts one, and --nats names another", err)
	}
	return c, nil
}

func newVersion(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.json {
				return printJSON(cmd.OutOrStdout(), map[string]string{"version": process.Version})
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ax", process.Version)
			return nil
		},
	}
}

// exactly takes n arguments, and says which are missing otherwise.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%s takes %d argument(s), got %d: %s", cmd.CommandPath(), n, len(args), cmd.UseLine())}
		}
		return nil
	}
}

// printJSON prints one document on one line.
func printJSON(out io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	_, err = fmt.Fprintln(out, string(line))
	return err
}

// shown makes text from tasks safe for a terminal: control characters cannot move the cursor or change colours.
func shown(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x2028 || r == 0x2029 {
			return '\uFFFD'
		}
		return r
	}, s)
}
