package mongostore

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// replyCutter is a dialer whose connections can lose one reply: once armed, the first command of the given name is sent in full and
// reaches the server, and then the connection breaks, so that the client does not learn what became of it.
type replyCutter struct {
	mu      sync.Mutex
	command string
	cuts    atomic.Int64
}

func (r *replyCutter) dial(o *options.ClientOptions) { o.SetDialer(r) }

func (r *replyCutter) arm(command string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.command = command
}

func (r *replyCutter) fired() bool { return r.cuts.Load() > 0 }

func (r *replyCutter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, cutter: r}, nil
}

type cutConn struct {
	net.Conn
	cutter *replyCutter
	cut    atomic.Bool
}

// Write looks for the command's name as the first element of the message's body: int32 or string typed, right after the length.
func (c *cutConn) Write(b []byte) (int, error) {
	c.cutter.mu.Lock()
	head := b[:min(len(b), 64)]
	if name := c.cutter.command; name != "" && (bytes.Contains(head, []byte("\x02"+name+"\x00")) || bytes.Contains(head, []byte("\x10"+name+"\x00"))) {
		c.cutter.command = ""
		c.cut.Store(true)
	}
	c.cutter.mu.Unlock()
	return c.Conn.Write(b)
}

// Read waits for the reply, which proves that the server has done the work, and loses it.
func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		c.cutter.cuts.Add(1)
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// commandSizes records how often a command is sent and how large it is.
type commandSizes struct {
	name  string
	mu    sync.Mutex
	sizes []int
}

func (c *commandSizes) watch(o *options.ClientOptions) {
	o.SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == c.name {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.sizes = append(c.sizes, len(e.Command))
		}
	}})
}

func (c *commandSizes) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sizes)
}

func (c *commandSizes) largest() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	largest := 0
	for _, n := range c.sizes {
		largest = max(largest, n)
	}
	return largest
}

func (c *commandSizes) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sizes = nil
}

// concernWatch remembers the write concern of the newest command of each name.
type concernWatch struct {
	mu   sync.Mutex
	seen map[string]any
}

func (c *concernWatch) watch(o *options.ClientOptions) {
	o.SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		var concern struct {
			WriteConcern struct{ W any } `bson:"writeConcern"`
		}
		if bson.Unmarshal(e.Command, &concern) != nil {
			return
		}
		w := concern.WriteConcern.W
		if n, ok := w.(int32); ok {
			w = int64(n)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.seen == nil {
			c.seen = make(map[string]any)
		}
		c.seen[e.CommandName] = w
	}})
}

func (c *concernWatch) of(command string) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[command]
}
