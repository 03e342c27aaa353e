package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// submitFlags are the members of a submission as texts, checked where every submission is.
type submitFlags struct {
	body, payload, id, priority, delay, at, expires, timeout, attempts, losses, bizKey string
	unique, uniqueScope, uniqueFor, onConflict, maxWait                                string
	labels                                                                             []string
	noDeadLetter, wait                                                                 bool
}

func newSubmit(s *settings) *cobra.Command {
	f := &submitFlags{}
	cmd := &cobra.Command{
		Use:   "submit TYPE",
		Short: "Submit a task and print its id",
		Long: "submit stores a task and prints its id. Submitting again with the same --id and the same content is no error: the task exists once.\n\n" +
			"  ax submit email --payload '{\"to\":\"a@example.com\"}'\n  ax submit report --payload @body.json --priority 2 --delay 10m\n  echo '{\"n\":1}' | ax submit count --payload -",
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.submit(cmd, s, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.body, "body", "", "the whole submission as JSON, as it is sent over NATS; other flags are then not allowed")
	flags.StringVar(&f.payload, "payload", "", "JSON for the handler; @FILE reads a file, - standard input")
	flags.StringVar(&f.id, "id", "", "task id of your own: 1 to 128 characters of A-Z a-z 0-9 . _ : -")
	flags.StringVar(&f.priority, "priority", "", "0 (most urgent) to 9; default 5")
	flags.StringVar(&f.delay, "delay", "", "start no sooner than after this time, such as 90s or PT90S")
	flags.StringVar(&f.at, "at", "", "start no sooner than at this time, such as 2030-01-31T08:00:00+01:00")
	flags.StringVar(&f.expires, "expires", "", "fail the task if it has not started by this time")
	flags.StringVar(&f.timeout, "run-timeout", "", "bound of each attempt; default 30m")
	flags.StringVar(&f.attempts, "max-attempts", "", "how often it may fail; default 3")
	flags.StringVar(&f.losses, "max-losses", "", "how many lost workers it survives; default 3, 0 means at most once")
	flags.StringVar(&f.bizKey, "biz-key", "", "a key of your own, repeated in every event")
	flags.StringVar(&f.unique, "unique", "", "a key that only one task of the type may hold")
	flags.StringVar(&f.uniqueScope, "unique-scope", "", "how long the key is held: active (until the task has ended; default), duration or forever")
	flags.StringVar(&f.uniqueFor, "unique-for", "", "the time for scope duration, such as 10m")
	flags.StringVar(&f.onConflict, "on-conflict", "", "when the key is held: reject (default), keep, replace or debounce")
	flags.StringVar(&f.maxWait, "max-wait", "", "how long debounce puts the start off at most; default ten delays")
	flags.StringArrayVar(&f.labels, "label", nil, "NAME=VALUE, repeated in every event; may be given several times")
	flags.BoolVar(&f.noDeadLetter, "no-dead-letter", false, "leave no dead letter when it fails for good")
	flags.BoolVar(&f.wait, "wait", false, "wait for its end and print the task; exit 1 unless it succeeded")
	return cmd
}

func (f *submitFlags) submit(cmd *cobra.Command, s *settings, taskType string) error {
	if err := errors.Join(given(cmd), bodyAlone(cmd)); err != nil {
		return err
	}
	request, err := f.request(cmd.InOrStdin(), taskType)
	if err != nil {
		return err
	}
	one := client.TaskOf(request)
	if err := one.Check(); err != nil { // before anything is connected: bad input is bad without a server as well
		return err
	}
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	defer cancel()
	id, err := c.Submit(ctx, one)
	if refused, ok := errors.AsType[*events.Error](err); ok && refused.Code == events.CodeUnavailable {
		return fmt.Errorf("%w; its id is %s: with --id %s the same submission is stored once", err, one.ID(), one.ID())
	}
	if err != nil {
		return err
	}
	if f.wait {
		return waitAndShow(cmd, c, s, id)
	}
	if s.json {
		return printJSON(cmd.OutOrStdout(), events.Answer{ID: id, Accepted: true})
	}
	fmt.Fprintln(cmd.OutOrStdout(), id)
	return nil
}

// given refuses a flag that was given without a value, as a script does whose variable is not set: ignored, an empty --id would
// store a second task at each repeat.
func given(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Value.String() == "" && err == nil {
			err = usageError{fmt.Errorf("--%s is empty; give a value or leave it out", flag.Name)}
		}
	})
	return err
}

// bodyAlone refuses members of a submission beside a whole one.
func bodyAlone(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("body") {
		return nil
	}
	for _, other := range []string{"payload", "id", "priority", "delay", "at", "expires", "run-timeout", "max-attempts", "max-losses", "biz-key", "label", "no-dead-letter",
		"unique", "unique-scope", "unique-for", "on-conflict", "max-wait"} {
		if cmd.Flags().Changed(other) {
			return usageError{fmt.Errorf("--body is a whole submission; leave --%s out, or put it into the body", other)}
		}
	}
	return nil
}

func (f *submitFlags) request(in io.Reader, taskType string) (events.SubmitRequest, error) {
	r := events.SubmitRequest{Type: taskType}
	if f.body != "" {
		body, err := f.read(in, f.body)
		if err != nil {
			return r, err
		}
		if r.Submit, err = events.DecodeSubmit(body); err != nil {
			return r, err
		}
		// An empty id is a variable that was not set; the client would take it for none and make one.
		var named struct{ ID *string }
		if err := json.Unmarshal(body, &named); err == nil && named.ID != nil && *named.ID == "" {
			return r, intake.Refusal(task.ValidateID(""))
		}
		return r, nil
	}
	r.ID, r.BizKey = f.id, f.bizKey
	if f.payload != "" {
		payload, err := f.read(in, f.payload)
		if err != nil {
			return r, err
		}
		if !json.Valid(payload) {
			return r, events.Invalid("payload", string(payload), `JSON, such as '{"to":"a@example.com"}' or '"text"'`)
		}
		r.Payload = payload
	}
	for _, text := range []struct {
		given string
		into  **string
	}{{f.delay, &r.Delay}, {f.at, &r.ScheduledAt}, {f.expires, &r.ExpiresAt}, {f.timeout, &r.Timeout}} {
		if text.given != "" {
			*text.into = &text.given
		}
	}
	if r.Unique = f.uniqueKey(); r.Unique == nil && f.uniqueScope+f.uniqueFor+f.onConflict+f.maxWait != "" {
		return r, usageError{errors.New("--unique-scope, --unique-for, --on-conflict and --max-wait are about a unique key; give one with --unique KEY")}
	}
	for _, number := range []struct {
		field, given, allowed string
		into                  **int
	}{
		{"priority", f.priority, "a whole number from 0 (most urgent) to 9", &r.Priority},
		{"maxAttempts", f.attempts, "a whole number from 1 to 10000", &r.MaxAttempts},
		{"maxLosses", f.losses, "a whole number from 0 (at most once) to 1000", &r.MaxLosses},
	} {
		if number.given == "" {
			continue
		}
		n, err := strconv.Atoi(number.given)
		if err != nil {
			return r, events.Invalid(number.field, number.given, number.allowed)
		}
		*number.into = &n
	}
	for _, label := range f.labels {
		name, value, ok := strings.Cut(label, "=")
		if !ok {
			return r, events.Invalid("labels", label, "NAME=VALUE")
		}
		if _, again := r.Labels[name]; again {
			return r, events.Invalid("labels."+name, label, "each name once")
		}
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[name] = value
	}
	if f.noDeadLetter {
		r.OnExhausted = "ignore"
	}
	return r, nil
}

func (f *submitFlags) uniqueKey() *events.Unique {
	if f.unique == "" {
		return nil
	}
	u := &events.Unique{Key: f.unique, Scope: f.uniqueScope, OnConflict: f.onConflict}
	if f.uniqueFor != "" {
		u.For = &f.uniqueFor
	}
	if f.maxWait != "" {
		u.MaxWait = &f.maxWait
	}
	return u
}

// read takes text as it is, from a file (@FILE) or from standard input (-).
func (f *submitFlags) read(in io.Reader, text string) ([]byte, error) {
	switch {
	case text == "-":
		return io.ReadAll(in)
	case strings.HasPrefix(text, "@"):
		data, err := os.ReadFile(text[1:])
		if err != nil {
			return nil, usageError{err}
		}
		return data, nil
	}
	return []byte(text), nil
}
