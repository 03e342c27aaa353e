package stacktest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

func TestDatabaseNameFitsWhatMongoDBAllows(t *testing.T) {
	require.Equal(t, "axtest_12_3_testclaim_two_workers", databaseName("TestClaim/two workers!", 12, 3))
	long := databaseName(strings.Repeat("Long.$ ", 40), 4194304, 1_000_000)
	require.LessOrEqual(t, len(long), 63)
	require.NotContains(t, long, ".")
	require.NotContains(t, long, "$")
}

// failing is a test that notes its failure.
type failing struct {
	testing.TB
	said string
}

func (*failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestEventuallyWaitsForTheConditionAndFailsWithoutIt(t *testing.T) {
	n := 0
	Eventually(t, time.Minute, "third look", func() bool { n++; return n == 3 })
	require.Equal(t, 3, n)

	f := &failing{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Eventually(f, 20*time.Millisecond, "the moon is blue", func() bool { return false })
	}()
	<-ended
	require.Equal(t, "after 20ms still not so: the moon is blue", f.said)
}
