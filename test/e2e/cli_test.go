package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Every command as a process, on the system that `ax dev` runs.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := startDev(t, "--data", data)
	d.startWorker(t)
	watch := d.start(t, "watch")
	watch.awaitErr(t, "watching")
	watchJSON := d.start(t, "watch", "--json", "--type", "email", "--state", "success,failed")
	watchJSON.awaitErr(t, "watching")

	var published string
	for _, step := range []struct {
		name string
		try  func(t *testing.T)
	}{
		{"a plain publish is watched to its end", func(t *testing.T) { published = d.plainPublish(t, watch, watchJSON) }},
		{"get and history", func(t *testing.T) { d.getAndHistory(t, published) }},
		{"submit and wait", d.submitAndWait},
		{"cancel", d.cancel},
		{"rerun", func(t *testing.T) { d.rerun(t, published) }},
		{"list", d.list},
		{"status", d.status},
		{"schedule", d.schedule},
		{"bad input", d.badInput},
		{"what dev says to type next", d.typeNext},
	} {
		t.Run(step.name, step.try)
	}
	for _, p := range []*running{watch, watchJSON} {
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		require.Equal(t, 0, p.wait(t), p.errs.String())
	}
	d.stop(t)

	uri := d.mongoURI
	d = startDev(t, "--data", data)
	require.Equal(t, uri, d.mongoURI, "what a terminal keeps goes on being right")
	require.Contains(t, d.ax(t, "get", published).out, "success (succeeded)", "kept from one run to the next")
	d.stop(t)
	require.Equal(t, 1, d.ax(t, "get", published).code)
}

// What the README shows: any NATS client submits, a worker runs it, and watch tells of it.
func (d *dev) plainPublish(t *testing.T, watch, watchJSON *running) string {
	nc, err := nats.Connect(d.natsURL)
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.Publish("ax.submit.email", []byte(`{"payload":{"to":"a@example.com"}}`)))
	require.NoError(t, nc.Flush())
	stacktest.Eventually(t, late, "its end is shown", func() bool { return strings.Contains(watch.out.String(), "succeeded") })
	lines := strings.Split(strings.TrimSpace(watch.out.String()), "\n")
	require.Len(t, lines, 3)
	form := regexp.MustCompile(`^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  email  ([0-9A-Z]{26})  (.+)$`)
	id := ""
	for i, want := range []string{"new -> pending  submitted", "pending -> running  claimed  attempt 1", "running -> success  succeeded  attempt 1"} {
		found := form.FindStringSubmatch(lines[i])
		require.NotNil(t, found, lines[i])
		require.Equal(t, want, found[2])
		if i > 0 {
			require.Equal(t, id, found[1])
		}
		id = found[1]
	}

	stacktest.Eventually(t, late, "the other one shows the end alone", func() bool { return strings.Contains(watchJSON.out.String(), "\n") })
	var e events.Event
	require.NoError(t, json.Unmarshal([]byte(watchJSON.out.String()), &e))
	require.Equal(t, []string{id, "success"}, []string{e.ID, e.State})
	require.JSONEq(t, `{"attempt":1}`, string(e.Result))
	return id
}

// What dev prints can be typed as it stands, also where ax is not on the PATH.
func (d *dev) typeNext(t *testing.T) {
	var typed []string
	for line := range strings.Lines(d.out.String()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "export ") || strings.Contains(line, " submit ") {
			typed = append(typed, line)
		}
	}
	require.Len(t, typed, 3, "two exports and a submission")
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", strings.Join(typed, "\n")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func (d *dev) getAndHistory(t *testing.T, id string) {
	got := d.ax(t, "get", id)
	require.Zero(t, got.code, got.errs)
	for _, line := range []string{"id +" + id, "type +email", `state +success \(succeeded\)`, "attempts +1 started, 0 of 3 failures, 0 of 3 losses",
		`payload +{"to":"a@example.com"}`, `result +{"attempt":1}`, "finished +20..-"} {
		require.Regexp(t, "(?m)^"+line, got.out)
	}
	one := jsonOf[events.Task](t, d.ax(t, "get", id, "--json"))[0]
	require.Equal(t, []string{id, "success", "nats"}, []string{one.ID, one.State, one.Source})

	table := strings.Split(strings.TrimSpace(d.ax(t, "history", id).out), "\n")
	require.Len(t, table, 4)
	require.Equal(t, strings.Fields("SEQ AT FROM TO REASON BY ATTEMPT ERROR"), strings.Fields(table[0]))
	require.Regexp(t, `^1 +\S+ +pending +submitted +submitter/nats +0`, table[1])
	require.Regexp(t, `^3 +\S+ +running +success +succeeded +worker/cli +1`, table[3])
	entries := jsonOf[events.HistoryEntry](t, d.ax(t, "history", id, "--json"))
	require.Len(t, entries, 3)
	require.Equal(t, "claimed", entries[1].Reason)

	for _, command := range []string{"get", "history", "wait", "cancel", "rerun"} {
		missing := d.ax(t, command, "nobody")
		require.Equal(t, 1, missing.code, command)
		require.Empty(t, missing.out)
		require.Contains(t, missing.errs, "no task has this id")
	}
}

func (d *dev) submitAndWait(t *testing.T) {
	made := d.ax(t, "submit", "email", "--payload", `{"runMs":1}`, "--id", "cli-1", "--priority", "2", "--label", "team=red", "--biz-key", "b")
	require.Equal(t, said{0, "cli-1\n", ""}, made)
	require.Equal(t, made, d.ax(t, "submit", "email", "--payload", `{"runMs":1}`, "--id", "cli-1", "--priority", "2", "--label", "team=red", "--biz-key", "b"),
		"the same again")
	waited := d.ax(t, "wait", "cli-1")
	require.Zero(t, waited.code, waited.errs)
	require.Regexp(t, `(?m)^label team +red$`, waited.out)

	body := d.axIn(t, `{"payload":{"runMs":1},"priority":9}`, "submit", "email", "--body", "-", "--json", "--wait")
	require.Zero(t, body.code, body.errs)
	require.Equal(t, 9, jsonOf[events.Task](t, body)[0].Priority)
	answer := jsonOf[events.Answer](t, d.ax(t, "submit", "email", "--json", "--delay", "1h"))[0]
	require.True(t, answer.Accepted)

	failed := d.ax(t, "submit", "email", "--payload", `{"fail":1}`, "--max-attempts", "1", "--wait")
	require.Equal(t, 1, failed.code)
	require.Regexp(t, `(?m)^last error +this attempt fails by plan$`, failed.out)
	require.Contains(t, failed.errs, "ended failed (exhausted)")

	running := d.ax(t, "wait", answer.ID, "--timeout", "1s")
	require.Equal(t, 1, running.code)
	require.Empty(t, running.out)
	require.Contains(t, running.errs, "is still pending after 1s")
	require.Contains(t, running.errs, "ax wait "+answer.ID)
}

func (d *dev) cancel(t *testing.T) {
	waiting := strings.TrimSpace(d.ax(t, "submit", "email", "--delay", "1h").out)
	require.Equal(t, said{0, "cancelled\n", ""}, d.ax(t, "cancel", waiting))
	require.Equal(t, "cancelled", jsonOf[events.CancelReply](t, d.ax(t, "cancel", waiting, "--json"))[0].Status, "twice is like once")
	ended := d.ax(t, "wait", waiting)
	require.Equal(t, 1, ended.code)
	require.Contains(t, ended.errs, "ended cancelled")
	require.Equal(t, said{0, "finished\n", ""}, d.ax(t, "cancel", "cli-1"))

	runs := strings.TrimSpace(d.ax(t, "submit", "email", "--payload", `{"runMs":60000}`).out)
	stacktest.Eventually(t, late, "it runs", func() bool { return strings.Contains(d.ax(t, "get", runs).out, "running (claimed)") })
	require.Equal(t, said{0, "cancelling\n", ""}, d.ax(t, "cancel", runs))
	require.Contains(t, d.ax(t, "wait", runs).out, "cancelled (cancelled)")
}

func (d *dev) rerun(t *testing.T, id string) {
	again := d.ax(t, "rerun", id)
	require.Zero(t, again.code, again.errs)
	require.True(t, strings.HasPrefix(again.out, "ax:rerun:"), again.out)
	require.Regexp(t, `(?m)^re-run of +`+id+`$`, d.ax(t, "wait", strings.TrimSpace(again.out)).out)
	twice := d.ax(t, "rerun", id)
	require.Equal(t, 1, twice.code, "the re-run has ended: nothing would run")
	require.Empty(t, twice.out)
	require.Contains(t, twice.errs, "to run it once more, re-run "+strings.TrimSpace(again.out))
	answer := jsonOf[events.Answer](t, d.ax(t, "rerun", strings.TrimSpace(again.out), "--json"))[0]
	require.NotEqual(t, strings.TrimSpace(again.out), answer.ID)

	waiting := strings.TrimSpace(d.ax(t, "submit", "email", "--delay", "1h").out)
	refused := d.ax(t, "rerun", waiting)
	require.Equal(t, 2, refused.code)
	require.Contains(t, refused.errs, "only a task that has ended")
}

// Ids of ax rise with time, and the greatest comes first.
func (d *dev) list(t *testing.T) {
	ids := make([]string, 3)
	for i := range ids {
		ids[i] = strings.TrimSpace(d.ax(t, "submit", "report", "--delay", "1h").out)
	}
	table := d.ax(t, "list", "--type", "report")
	lines := strings.Split(strings.TrimSpace(table.out), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, strings.Fields("ID TYPE STATE REASON PRIORITY ATTEMPTS CREATED"), strings.Fields(lines[0]))
	for i, line := range lines[1:] {
		require.Regexp(t, "^"+ids[2-i]+` +report +pending +submitted +5 +0 +20`, line)
	}
	require.Empty(t, table.errs)

	for _, args := range [][]string{{}, {"--json"}} {
		page := d.ax(t, append([]string{"list", "--type", "report", "--state", "pending", "--limit", "2"}, args...)...)
		require.Zero(t, page.code, page.errs)
		_, next, ok := strings.Cut(page.errs, "more: ax ")
		require.True(t, ok, page.errs)
		rest := d.ax(t, append(strings.Fields(next), args...)...)
		require.Contains(t, rest.out, ids[0])
		require.NotContains(t, rest.out, ids[1])
	}
	require.Len(t, jsonOf[events.Task](t, d.ax(t, "list", "--json", "--state", "failed")), 1)
	require.Contains(t, d.ax(t, "list", "--help").out, "by id from the greatest down")
}

func (d *dev) status(t *testing.T) {
	stacktest.Eventually(t, late, "the failed task has left a dead letter", func() bool {
		return strings.Contains(d.ax(t, "status").out, "dead letters: 1\n")
	})
	shown := d.ax(t, "status")
	require.Zero(t, shown.code, shown.errs)
	require.Regexp(t, `(?m)^workers: 1$`, shown.out)
	require.Regexp(t, `(?m)^cli +stable +20 +\S* +[0-9]+s ago +email,report$`, shown.out)
	stats := jsonOf[events.StatsReply](t, d.ax(t, "status", "--json"))[0]
	require.Equal(t, "cli", stats.Workers[0].ID)
	now, err := time.Parse(time.RFC3339, stats.Now)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), now, time.Minute)
}

func (d *dev) schedule(t *testing.T) {
	put := d.ax(t, "schedule", "put", "nightly", "30 2 * * *", "email", "--zone", "Europe/Berlin", "--payload", `{"runMs":1}`, "--max-attempts", "5")
	require.Zero(t, put.code, put.errs)
	require.Regexp(t, `(?m)^nightly +30 2 \* \* \* +Europe/Berlin +email +20\d\d-`, put.out)
	require.Regexp(t, `^20\d\d-\S+T0[23]:[03]0:00\+0[12]:00\n20\d\d-\S+\n$`, d.ax(t, "schedule", "preview", "nightly", "--count", "2").out)
	often := jsonOf[events.Schedule](t, d.ax(t, "schedule", "put", "often", "@every 1s", "email", "--json"))[0]
	require.NotEmpty(t, often.NextAt)

	require.Equal(t, 5, *jsonOf[events.Schedule](t, d.ax(t, "schedule", "get", "nightly", "--json"))[0].Task.MaxAttempts)
	lines := strings.Split(strings.TrimSpace(d.ax(t, "schedule", "list").out), "\n")
	require.Len(t, lines, 3)
	require.Regexp(t, "^nightly ", lines[1])
	require.Regexp(t, "^often ", lines[2])
	require.Len(t, jsonOf[events.Schedule](t, d.ax(t, "schedule", "list", "--json")), 2)

	at, err := time.Parse(time.RFC3339, often.NextAt)
	require.NoError(t, err)
	slot := "cron:often:" + at.UTC().Format(time.RFC3339)
	stacktest.Eventually(t, late, "it fires", func() bool { return d.ax(t, "get", slot).code == 0 })
	require.Zero(t, d.ax(t, "wait", slot).code)

	require.Equal(t, said{0, "", ""}, d.ax(t, "schedule", "delete", "often"))
	require.Equal(t, "nightly", jsonOf[events.ScheduleRequest](t, d.ax(t, "schedule", "delete", "nightly", "--json"))[0].Name)
	for _, command := range []string{"get", "delete"} {
		missing := d.ax(t, "schedule", command, "often")
		require.Equal(t, 1, missing.code)
		require.Contains(t, missing.errs, "often")
	}
	bad := d.ax(t, "schedule", "put", "never", "0 0 30 2 *", "email")
	require.Equal(t, 2, bad.code)
	require.Contains(t, bad.errs, "field cron")
	require.Empty(t, d.ax(t, "schedule", "list", "--json").out)
}

// What can be seen without a server is tried beside the command; here it is the system that refuses.
func (d *dev) badInput(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"submit", "email", "--id", "cli-1", "--payload", "2"}, `field id: "cli-1" belongs to another submission`},
		{[]string{"get", "a b"}, "field id"},
		{[]string{"list", "--state", "done"}, "field state"},
		{[]string{"list", "--limit", "1001"}, "field limit"},
		{[]string{"list", "--after", "a b"}, "field after"},
		{[]string{"schedule", "get", "a.b"}, "field name"},
		{[]string{"schedule", "put", "x", "* * * * *", "email", "--zone", "Mars"}, "field zone"},
	} {
		got := d.ax(t, c.args...)
		require.Equal(t, 2, got.code, "%v: %s", c.args, got.errs)
		require.Empty(t, got.out)
		require.Contains(t, got.errs, c.says)
	}
}

// dev is a running `ax dev`.
type dev struct {
	*running
	natsURL, mongoURI string
}

func startDev(t *testing.T, args ...string) *dev {
	t.Helper()
	d := &dev{running: start(t, "", append([]string{"dev", "--nats-port", "0", "--http-port", "0"}, args...)...)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("ax dev said:\n%s\n%s", d.out.String(), d.errs.String())
		}
	})
	stacktest.Eventually(t, time.Minute, "ax dev runs", func() bool {
		select {
		case <-d.done:
			t.Fatalf("ax dev ended: %s", d.errs.String())
		default:
		}
		return strings.HasSuffix(d.out.String(), " watch\n")
	})
	d.natsURL = regexp.MustCompile(`export AX_NATS_URL=(\S+)\n`).FindStringSubmatch(d.out.String())[1]
	d.mongoURI = regexp.MustCompile(`export AX_MONGO_URI='(\S+)'\n`).FindStringSubmatch(d.out.String())[1]
	return d
}

// stop is Ctrl-C.
func (d *dev) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 0, d.wait(t), d.errs.String())
}

func (d *dev) startWorker(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: "cli", Path: localstack.ServicePath(bin, "ledgerworker"),
		Env: []string{"AX_MONGO_URI=" + d.mongoURI, "AX_NATS_URL=" + d.natsURL, "LEDGER_FILE=" + filepath.Join(t.TempDir(), "ledger"),
			"LEDGER_NAME=cli", "LEDGER_SLOTS=20", "LEDGER_TYPES=email,report", "LEDGER_LEASE=30s"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Kill()) }) // the system is gone by then
	require.NoError(t, s.WaitReady(ctx))
}

func (d *dev) ax(t *testing.T, args ...string) said {
	t.Helper()
	return d.axIn(t, "", args...)
}

func (d *dev) axIn(t *testing.T, stdin string, args ...string) said {
	t.Helper()
	return runAx(t, d.natsURL, stdin, args...)
}

func (d *dev) start(t *testing.T, args ...string) *running {
	t.Helper()
	return start(t, d.natsURL, args...)
}

// jsonOf reads what a command printed with --json: one document a line.
func jsonOf[T any](t *testing.T, got said) (all []T) {
	t.Helper()
	for line := range strings.Lines(got.out) {
		var one T
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&one), "%s%s", line, got.errs)
		all = append(all, one)
	}
	require.NotEmpty(t, all, got.errs)
	return all
}

// said is what a command printed, and how it ended.
type said struct {
	code      int
	out, errs string
}

// ax runs the command line to its end.
func (w *world) ax(t *testing.T, stdin string, args ...string) said {
	t.Helper()
	return runAx(t, w.nats.URL(), stdin, args...)
}

func runAx(t *testing.T, natsURL, stdin string, args ...string) said {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := axCommand(ctx, natsURL, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	return said{exitCode(t, cmd.Run()), out.String(), errs.String()}
}

func axCommand(ctx context.Context, natsURL string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, localstack.ServicePath(bin, "ax"), args...)
	cmd.Env = append(withoutAX(), "AX_NATS_URL="+natsURL)
	return cmd
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	require.NoError(t, err)
	return 0
}

// running is a command that has not ended.
type running struct {
	cmd       *exec.Cmd
	out, errs *text
	done      chan struct{}
	err       error
}

func start(t *testing.T, natsURL string, args ...string) *running {
	t.Helper()
	r := &running{cmd: axCommand(context.Background(), natsURL, args...), out: &text{}, errs: &text{}, done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.errs
	require.NoError(t, r.cmd.Start())
	go func() {
		defer close(r.done)
		r.err = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // fails when it has ended, as it should have
		<-r.done
	})
	return r
}

// wait returns the exit code.
func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%v has not ended", r.cmd.Args)
	}
	return exitCode(t, r.err)
}

func (r *running) awaitErr(t *testing.T, part string) {
	t.Helper()
	stacktest.Eventually(t, late, fmt.Sprintf("%v says %q", r.cmd.Args, part), func() bool { return strings.Contains(r.errs.String(), part) })
}

// text is output that is read while it is written.
type text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *text) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(b)
}

func (o *text) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}
