package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// natsProxy stands between a client and NATS and can keep what is published to itself, acknowledgements unless told otherwise: NATS
// and the client both believe that all is well, as when a machine dies with the acknowledgements still in its buffers.
type natsProxy struct {
	listener  net.Listener
	target    string
	prefix    string // of the subjects that are swallowed
	swallow   atomic.Bool
	swallowed atomic.Int64

	all   sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
}

func startProxy(t *testing.T, target string) *natsProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &natsProxy{listener: listener, prefix: "$JS.ACK.", target: strings.TrimPrefix(target, "nats://")}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.all.Wait()
	})
	return p
}

func (p *natsProxy) URL() string { return "nats://" + p.listener.Addr().String() }

func (p *natsProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed by Cleanup
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.all.Go(func() {
			defer client.Close()
			_, _ = io.Copy(client, server)
		})
		p.all.Go(func() {
			defer server.Close()
			_ = p.forward(server, bufio.NewReader(client))
		})
	}
}

// forward passes on what the client sends, command by command, less what is swallowed.
func (p *natsProxy) forward(server io.Writer, client *bufio.Reader) error {
	for {
		line, err := client.ReadString('\n')
		if err != nil {
			return err
		}
		command := strings.Fields(line)
		out := []byte(line)
		var subject string
		if len(command) > 2 && (command[0] == "PUB" || command[0] == "HPUB") { // [H]PUB subject [reply] [header size] size, and then so many bytes
			subject = command[1]
			size, err := strconv.Atoi(command[len(command)-1])
			if err != nil {
				return fmt.Errorf("a command without a size: %q", line)
			}
			body := make([]byte, size+len("\r\n"))
			if _, err := io.ReadFull(client, body); err != nil {
				return err
			}
			out = append(out, body...)
		}
		if p.swallow.Load() && strings.HasPrefix(subject, p.prefix) {
			p.swallowed.Add(1)
			continue
		}
		if _, err := server.Write(out); err != nil {
			return err
		}
	}
}
