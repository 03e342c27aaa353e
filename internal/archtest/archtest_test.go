package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRepositoryKeepsTheRules(t *testing.T) {
	files, err := Scan("../..")
	require.NoError(t, err)
	require.Greater(t, len(files), 50, "the sources were found")
	require.Empty(t, strings.Join(Check(files), "\n"))
}

func TestEachRuleFindsAPlantedBreach(t *testing.T) {
	ours := func(paths ...string) []string {
		for i := range paths {
			paths[i] = module + "/" + paths[i]
		}
		return paths
	}
	for _, tc := range []struct {
		name string
		file File
		want string
	}{
		{"task imports ours", File{Path: "internal/task/a.go", Imports: ours("internal/lead")}, "imports nothing of ours"},
		{"events imports ours", File{Path: "pkg/events/a.go", Imports: ours("internal/task")}, "imports nothing of ours"},
		{"service imports service", File{Path: "services/cron/main.go", Imports: ours("services/reaper/reap")}, "services meet in messages"},
		{"service's test imports service", File{Path: "services/cron/schedule/a_test.go", Imports: ours("services/reaper/reap")}, "services meet in messages"},
		{"package imports service", File{Path: "internal/lead/a.go", Imports: ours("services/reaper/reap")}, "services meet in messages"},
		{"verb imports store", File{Path: "services/cron/schedule/a.go", Imports: ours("internal/mongostore")}, "small interfaces it declares"},
		{"verb imports bus", File{Path: "services/cron/schedule/inner/a.go", Imports: ours("internal/natsbus")}, "small interfaces it declares"},
		{"service carries a server", File{Path: "services/cron/main.go", Imports: ours("internal/localstack")}, "servers of its own"},
		{"stacktest outside of tests", File{Path: "internal/lead/a.go", Imports: ours("internal/localstack/stacktest")}, "stacktest is for tests"},
		{"driver in a service", File{Path: "services/cron/main.go", Imports: []string{"go.mongodb.org/mongo-driver/v2/bson"}}, "every write is a guarded one"},
		{"driver in the worker", File{Path: "pkg/worker/a.go", Imports: []string{"go.mongodb.org/mongo-driver/v2/mongo"}}, "every write is a guarded one"},
		{"NATS in a service", File{Path: "services/cron/main.go", Imports: []string{"github.com/nats-io/nats.go"}}, "declared in one place"},
		{"JetStream in the store", File{Path: "internal/mongostore/a.go", Imports: []string{"github.com/nats-io/nats.go/jetstream"}}, "declared in one place"},
		{"server in the bus", File{Path: "internal/natsbus/a.go", Imports: []string{"github.com/nats-io/nats-server/v2/server"}}, "11 MB larger"},
		{"server in a test", File{Path: "internal/natsbus/a_test.go", Imports: []string{"github.com/nats-io/nats-server/v2/server"}}, "11 MB larger"},
		{"test with NATS in its own process", File{Path: "services/cron/a_test.go", NATS: []int{7}}, "line 7 starts NATS in its own process"},
		{"stacktest with NATS in its own process", File{Path: "internal/localstack/stacktest/a.go", NATS: []int{7}}, "use stacktest.NATS"},
		{"long file", File{Path: "a/a.go", Lines: 601}, "has 601 lines"},
		{"empty name", File{Path: "internal/util/a.go", Package: "util"}, "says nothing"},
		{"sleeping test", File{Path: "a/a_test.go", Sleeps: []int{7}}, "line 7 sleeps"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Check([]File{tc.file})
			require.Len(t, got, 1)
			require.Contains(t, got[0], tc.file.Path+": ")
			require.Contains(t, got[0], tc.want)
		})
	}

	driver := []string{"go.mongodb.org/mongo-driver/v2/mongo"}
	got := Check([]File{{Path: "pkg/client/a.go", Imports: driver}, {Path: "pkg/client/b.go", Imports: driver}})
	require.Len(t, got, 1)
	require.Contains(t, got[0], "pkg/client/a.go, pkg/client/b.go: the MongoDB driver is there in pkg/client for InsertTx only")
}

func TestWhatIsAllowedIsNotFound(t *testing.T) {
	driver, bus := "go.mongodb.org/mongo-driver/v2/mongo", "github.com/nats-io/nats.go/jetstream"
	require.Empty(t, Check([]File{
		{Path: "internal/task/a.go", Imports: []string{"time"}},
		{Path: "internal/task/a_test.go", Imports: []string{module + "/internal/lead"}},
		{Path: "services/cron/main.go", Imports: []string{module + "/services/cron/schedule", module + "/internal/mongostore", module + "/internal/natsbus"}},
		{Path: "services/cron/schedule/a.go", Imports: []string{module + "/internal/task", module + "/internal/intake", module + "/pkg/events", module + "/services/cron/schedule/inner"}},
		{Path: "services/cron/schedule/a_test.go", Imports: []string{module + "/internal/mongostore", module + "/internal/localstack/stacktest", driver, bus}},
		{Path: "internal/mongostore/a.go", Imports: []string{driver}},
		{Path: "pkg/client/inserttx.go", Imports: []string{driver, bus}},
		{Path: "pkg/client/inserttx_test.go", Imports: []string{driver}},
		{Path: "pkg/worker/a.go", Imports: []string{bus}},
		{Path: "test/e2e/a.go", Imports: []string{driver, bus, module + "/internal/localstack/stacktest"}},
		{Path: "a/a_test.go", Sleeps: []int{7}, Synctest: true},
		{Path: "a/a.go", Sleeps: []int{7}, Lines: 600},
		{Path: "internal/localstack/a_test.go", NATS: []int{7}, Imports: []string{"github.com/nats-io/nats-server/v2/server"}},
		{Path: "cmd/ax/dev.go", NATS: []int{7}},
	}))
}

func TestScanSeesTheSources(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("a/a_test.go", "//go:build never\n\npackage a\n\nimport (\n\tclock \"time\"\n)\n\nfunc f() {\n\tclock.Sleep(1)\n\tother.Sleep(1)\n}\n")
	write("b/b_test.go", "package b\n\nimport \"testing/synctest\"\n")
	write("b/c.go", "package b\n\nimport stack \""+module+"/internal/localstack\"\n\nvar a, b, c = stack.StartNATS, stack.StartMongo, other.StartNATS\n")
	write("a/testdata/c.go", "not Go")
	write(".cache/d.go", "not Go")
	write("a/e.txt", "not Go")
	files, err := Scan(root)
	require.NoError(t, err)
	require.Equal(t, []File{
		{Path: "a/a_test.go", Package: "a", Imports: []string{"time"}, Lines: 12, Sleeps: []int{10}},
		{Path: "b/b_test.go", Package: "b", Imports: []string{"testing/synctest"}, Lines: 3, Synctest: true},
		{Path: "b/c.go", Package: "b", Imports: []string{module + "/internal/localstack"}, Lines: 5, NATS: []int{5}},
	}, files)

	write("broken.go", "packag")
	_, err = Scan(root)
	require.ErrorContains(t, err, "broken.go")
}
