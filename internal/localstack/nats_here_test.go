//go:build !race

package localstack_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
)

// `ax dev` runs NATS in its own process. The race detector finds races in the library there, so it is left out of this test;
// all others run it as a process.
func TestNATSInThisProcessLeavesNothingBehind(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	n, err := localstack.StartNATS(t.Context(), localstack.NATSOptions{})
	require.NoError(t, err)
	defer n.Stop()
	nc, err := nats.Connect(n.URL())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(deadline(t), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish(deadline(t), "s", []byte("x"))
	require.NoError(t, err)
	require.Len(t, dirsIn(t, os.TempDir()), 1)

	var port int
	_, err = fmt.Sscanf(n.URL(), "nats://127.0.0.1:%d", &port)
	require.NoError(t, err)
	_, err = localstack.StartNATS(t.Context(), localstack.NATSOptions{Port: port})
	require.ErrorContains(t, err, "address already in use")

	n.Stop()
	n.Stop()
	_, err = net.Dial("tcp", strings.TrimPrefix(n.URL(), "nats://"))
	require.Error(t, err)
	require.Empty(t, dirsIn(t, os.TempDir()), "its folder is deleted")
}
