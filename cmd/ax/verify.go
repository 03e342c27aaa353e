package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/audit"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
)

const (
	verifyTimeout = 30 * time.Minute
	verifyTell    = 2 * time.Second // between two lines of progress
)

// uncheckedError says that an audit could not look at everything.
type uncheckedError struct{ error }

func (e uncheckedError) Unwrap() error { return e.error }

// verifyFlags say what is audited.
type verifyFlags struct {
	database
	events bool
	since  string
	kind   string
	limit  int
	late   time.Duration
}

func newVerify(s *settings) *cobra.Command {
	f := &verifyFlags{}
	cmd := &cobra.Command{
		Use: "verify", Short: "Check that everything stored is as ax promises", Args: exactly(0),
		Long: "verify reads tasks with their histories, dead letters, schedules, workers and, with --events, the event stream, and reports every\n" +
			"broken invariant. It changes nothing and works on a live or a stopped system; it needs the database, and NATS for --events alone.\n\n" +
			"Exit codes: 0 nothing is wrong, 1 violations were found, 2 not everything could be checked (or bad input).",
		RunE: func(cmd *cobra.Command, _ []string) error {
			timeout := verifyTimeout
			if cmd.Flags().Changed("timeout") {
				timeout = s.timeout
			}
			return f.run(cmd, s, timeout)
		},
	}
	f.database.flags(cmd)
	cmd.Flags().BoolVar(&f.events, "events", false, "compare the event stream with the histories as well")
	cmd.Flags().StringVar(&f.since, "since", "", "pass over tasks that ended before: a time such as 2026-01-31T08:00:00Z, or how long ago, such as 24h")
	cmd.Flags().StringVar(&f.kind, "type", "", "only this task type")
	cmd.Flags().IntVar(&f.limit, "limit", 1000, "end after so many violations")
	cmd.Flags().DurationVar(&f.late, "late", 2*time.Minute, "how late anything may be before it counts as forgotten")
	return cmd
}

func (f *verifyFlags) run(cmd *cobra.Command, s *settings, timeout time.Duration) error {
	since, ago, err := f.validate()
	if err != nil {
		return err
	}
	if f.events {
		if err := s.checkNATS(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	store, err := f.open(ctx, "ax-verify")
	if err != nil {
		return uncheckedError{err}
	}
	defer store.Close(context.WithoutCancel(ctx))
	if ago > 0 {
		now, _, err := store.Now()
		if err != nil {
			return uncheckedError{err}
		}
		since = now.Add(-ago)
	}
	o := audit.Options{Since: since, Type: f.kind, Limit: f.limit, Late: f.late, Progress: told(cmd.ErrOrStderr())}
	if f.events {
		bus, err := natsbus.Connect(natsbus.Options{URL: s.natsURL, Name: "ax-verify"})
		if err != nil {
			return uncheckedError{fmt.Errorf("%w; --nats names another", err)}
		}
		defer bus.Close()
		o.Events = bus
	}
	out := cmd.OutOrStdout()
	o.Report = func(v audit.Violation) error { return printJSON(out, v) }
	var found []audit.Violation
	if !s.json {
		o.Report = func(v audit.Violation) error {
			found = append(found, v)
			return nil
		}
	}
	sum, err := audit.Run(ctx, store, o)
	if !s.json {
		if shown := showViolations(out, found); shown != nil {
			return uncheckedError{shown}
		}
	}
	return verdict(cmd.ErrOrStderr(), sum, err, timeout)
}

// validate returns the time to begin with, or how long ago it is.
func (f *verifyFlags) validate() (since time.Time, ago time.Duration, err error) {
	if f.limit < 1 {
		return since, 0, usageError{fmt.Errorf("--limit is %d; give a whole number from 1 on", f.limit)}
	}
	if f.late <= 0 {
		return since, 0, usageError{fmt.Errorf("--late is %v; give a time above zero, such as 2m", f.late)}
	}
	if f.kind != "" {
		if err := task.ValidateType(f.kind); err != nil {
			return since, 0, usageError{fmt.Errorf("--type: %w", err)}
		}
	}
	if err := f.database.check(); err != nil {
		return since, 0, err
	}
	return moment("--since", f.since)
}

// moment reads a time, or how long ago it is.
func moment(flag, text string) (at time.Time, ago time.Duration, err error) {
	if text == "" {
		return at, 0, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err == nil {
		return at, 0, nil
	}
	if ago, err = time.ParseDuration(text); err != nil || ago <= 0 {
		return at, 0, usageError{fmt.Errorf("%s is %q; give a time such as 2026-01-31T08:00:00Z, or how long ago, such as 24h", flag, text)}
	}
	return at, ago, nil
}

// told prints what an audit is at, now and then.
func told(out io.Writer) func(string, int) {
	last := time.Now()
	return func(what string, n int) {
		if time.Since(last) >= verifyTell {
			last = time.Now()
			fmt.Fprintf(out, "reading: %s, %d so far\n", what, n)
		}
	}
}

func showViolations(out io.Writer, found []audit.Violation) error {
	if len(found) == 0 {
		return nil
	}
	return table(out, "KIND\tTASK\tTYPE\tSEQ\tWHAT", len(found), func(i int) string {
		v := found[i]
		seq := "-"
		if v.Seq != 0 {
			seq = fmt.Sprint(v.Seq)
		}
		text := v.Text
		if v.Schedule != "" {
			text = "schedule " + v.Schedule + ": " + text
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", v.Kind, shown(cmp.Or(v.Task, "-")), shown(cmp.Or(v.Type, "-")), seq, shown(text))
	})
}

// verdict tells what was looked at and turns it into the exit code.
func verdict(out io.Writer, sum audit.Summary, err error, timeout time.Duration) error {
	fmt.Fprintf(out, "read %d tasks, %d events, %d dead letters and %d schedules\n", sum.Tasks, sum.Events, sum.DeadLetters, sum.Schedules)
	for _, what := range sum.Unchecked {
		fmt.Fprintln(out, "unchecked:", what)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not done after %s: %w; --timeout gives it longer, --since and --type give it less to do", timeout, err)
	}
	switch {
	case sum.Stopped:
		return fmt.Errorf("%d violations, and there may be more: --limit sets how many are looked for", sum.Violations)
	case sum.Violations > 0 && err != nil:
		return fmt.Errorf("%d violations; not everything could be checked: %w", sum.Violations, err)
	case sum.Violations > 0:
		return fmt.Errorf("%d violations", sum.Violations)
	case err != nil:
		return uncheckedError{err}
	case len(sum.Unchecked) > 0:
		return uncheckedError{errors.New("not everything could be checked")}
	}
	fmt.Fprintln(out, "nothing is wrong")
	return nil
}
