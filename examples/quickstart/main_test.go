package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/pkg/client"
)

// runsExample, set for a copy of the test binary, makes it the example.
const runsExample = "TEST_RUNS_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(runsExample) != "" {
		main()
		return
	}
	stacktest.Main(m)
}

// The example does what the README says it does.
func TestTheExampleSubmitsRunsAndHears(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	bin := t.TempDir()
	services := []string{"submitter", "dispatcher", "notifier"}
	build := exec.CommandContext(ctx, "go", "build", "-o", bin+string(filepath.Separator))
	for _, name := range services {
		build.Args = append(build.Args, "../../services/"+name)
	}
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	nats := stacktest.NATS(t).URL()
	system, err := localstack.StartSystem(ctx, localstack.SystemOptions{
		Bin: bin, MongoURI: stacktest.Mongo(t).URI(), Database: stacktest.Database(t), NATSURL: nats, Services: services})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, system.Stop(20*time.Second)) })

	// Somebody submitted an email before: the example's worker takes it, and the example tells of its own alone.
	c, err := client.Connect(client.Options{NATSURL: nats})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	earlier := client.NewTask("email", Email{To: "b@example.com"})
	_, err = c.Submit(ctx, earlier)
	require.NoError(t, err)

	example := exec.CommandContext(ctx, os.Args[0])
	example.Env = append(os.Environ(), append(system.Env(), runsExample+"=1")...)
	said, err := example.CombinedOutput()
	require.NoError(t, err, string(said))

	// The handler runs beside the subscriber, so its line may stand anywhere before the last.
	var told []string
	sent, before := 0, 0
	for line := range strings.Lines(string(said)) {
		if line == "sending an email to a@example.com\n" {
			sent++
			continue
		}
		if line == "sending an email to b@example.com\n" {
			before++
			continue
		}
		told = append(told, strings.TrimSpace(line))
	}
	require.Equal(t, 1, sent, string(said))
	require.Equal(t, 1, before, string(said))
	was, err := c.Get(ctx, earlier.ID())
	require.NoError(t, err)
	require.Equal(t, "success", was.State)
	require.Equal(t, []string{
		"event 1: pending, because submitted",
		"event 2: running, because claimed",
		`event 3: success, because succeeded {"Number":"r-1"}`,
	}, told)
}
