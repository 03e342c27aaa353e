package localstack_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

// badTest makes a second copy of this test binary end badly after it started the shared database.
const badTest = "LOCALSTACK_TEST_ENDS_BY"

func TestEndsBadly(t *testing.T) {
	how := os.Getenv(badTest)
	if how == "" {
		t.Skip("run by TestDatabaseGoesWithATestThat")
	}
	fmt.Println("pid", stacktest.Mongo(t).PID())
	switch how {
	case "failure":
		t.Fatal("as told")
	case "panic":
		panic("as told")
	case "leak":
		go func() { select {} }()
	case "kill":
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
}

func TestDatabaseGoesWithATestThat(t *testing.T) {
	if os.Getenv("AX_MONGO_URI") != "" {
		t.Skip("needs a database of its own; AX_MONGO_URI is set")
	}
	for _, how := range []string{"failure", "panic", "leak", "kill"} {
		t.Run(how, func(t *testing.T) {
			tmp := t.TempDir()
			c := exec.Command(os.Args[0], "-test.run=^TestEndsBadly$")
			c.Env = append(os.Environ(), badTest+"="+how, "TMPDIR="+tmp)
			out, err := c.CombinedOutput()
			require.Error(t, err, "the run fails")
			_, after, found := strings.Cut(string(out), "pid ")
			require.True(t, found, "%s", out)
			var pid int
			_, err = fmt.Sscan(after, &pid)
			require.NoError(t, err)
			stacktest.Eventually(t, 10*time.Second, "the database is gone", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
			if how == "failure" || how == "leak" {
				require.Empty(t, dirsIn(t, tmp), "and its folder")
			}
			if how == "leak" {
				require.Contains(t, string(out), "goroutines are left over")
			}
		})
	}
}

func TestAFolderLeftByAKilledProcessIsRemovedByTheNextOne(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	make := func(old bool) string {
		s, err := localstack.NewScratch()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Remove()) })
		if old {
			past := time.Now().Add(-2 * localstack.ScratchMinAge)
			require.NoError(t, os.Chtimes(s.Path(), past, past))
		}
		return s.Path()
	}
	inUse := make(true)
	abandoned, err := localstack.NewScratch()
	require.NoError(t, err)
	young, err := localstack.NewScratch()
	require.NoError(t, err)
	require.NoError(t, abandoned.Forget())
	require.NoError(t, young.Forget())
	past := time.Now().Add(-2 * localstack.ScratchMinAge)
	require.NoError(t, os.Chtimes(abandoned.Path(), past, past))

	next := make(false)
	require.ElementsMatch(t, []string{inUse, young.Path(), next}, dirsIn(t, os.TempDir()))
}

func TestNATSInAProcessOfItsOwnKeepsItsStreamsThroughAKill(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "natsd")
	out, err := exec.Command("go", "build", "-o", binary, "../../test/natsd").CombinedOutput()
	require.NoError(t, err, "%s", out)
	dir := t.TempDir()
	ctx := deadline(t)

	run := func(port string) (*exec.Cmd, string) {
		c := exec.CommandContext(ctx, binary, "-dir", dir, "-port", port)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		stdout, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		line, err := bufio.NewReader(stdout).ReadString('\n')
		require.NoError(t, err)
		url, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
		require.True(t, found, line)
		return c, url
	}
	c, url := run("0")
	js := jetStream(t, url)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish(ctx, "s", nil)
	require.NoError(t, err)
	require.NoError(t, c.Process.Kill())
	require.Error(t, c.Wait())

	c, again := run(url[strings.LastIndex(url, ":")+1:])
	require.Equal(t, url, again)
	s, err := jetStream(t, url).Stream(ctx, "S")
	require.NoError(t, err)
	require.EqualValues(t, 1, s.CachedInfo().State.Msgs, "an acknowledged message survives")
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.NoError(t, c.Wait(), "SIGTERM ends it in order")
}
