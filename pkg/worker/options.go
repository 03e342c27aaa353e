package worker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/natsbus"
	"github.com/ax-scheduler/ax/internal/task"
)

// Options configure a worker. A field left at its zero value takes its default; any other value outside the range is
// refused by [New]. [FromEnv] fills them from AX_ variables, where a zero is refused like every other value out of range.
type Options struct {
	// MongoURI is how the database is reached. It has no default.
	MongoURI string
	// Database is the database's name. Default "ax".
	Database string
	// NATSURL is how NATS is reached. Default "nats://127.0.0.1:4222". A worker starts and works without it, only slower.
	NATSURL string

	// ID names this process in the history of its tasks: 1 to 128 characters of A-Z a-z 0-9 . _ : -, and no other process
	// may have the same. Default: host name, process id and a random part.
	ID string
	// Channel is the channel whose tasks this worker takes. Default "stable".
	Channel string
	// Version is the version of the user's program, shown beside the worker. Default: none.
	Version string
	// Slots is how many handlers run at the same time, over all types: 1 to 10,000, default 20.
	Slots int

	// Lease is how long a task stays this worker's after its last heartbeat: 1 s to 1 h, default 30 s. A worker that cannot
	// reach the database cancels its handlers after 80 % of it.
	Lease time.Duration
	// Beat is the time between heartbeats: 100 ms to half a lease, default 5 s.
	Beat time.Duration
	// StopTimeout is how long a stop may take: 1 s to 10 min, default 10 s. Run returns at most 2 s after it.
	StopTimeout time.Duration
	// SoftStop is how long handlers may go on undisturbed after a stop was asked for, before their contexts end with
	// ErrShutdown: 1 ms to StopTimeout, default a quarter of it.
	SoftStop time.Duration

	// Confirmed, when set, is called at the start of each execution and at each heartbeat that the database confirmed, with the
	// time until which the execution is valid unless a later heartbeat extends it: its handler's context ends then. For audits;
	// it is called by the loop that beats, so it must return at once.
	Confirmed func(executionID string, until time.Time)

	// Log receives the worker's log lines. Default [slog.Default].
	Log *slog.Logger
	// Registerer receives the worker's metrics, ax_worker_*. Default: they are kept, but nowhere shown.
	Registerer prometheus.Registerer
}

// Limits and defaults of [Options].
const (
	defaultSlots       = 20
	maxSlots           = 10_000
	defaultBeat        = 5 * time.Second
	defaultStopTimeout = 10 * time.Second
	defaultDatabase    = "ax"
	defaultNATSURL     = "nats://127.0.0.1:4222"
)

var wellFormedID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// complete fills in the defaults and returns every problem it finds, joined.
func (o Options) complete() (Options, error) {
	o.Database = cmp.Or(o.Database, defaultDatabase)
	o.NATSURL = cmp.Or(o.NATSURL, defaultNATSURL)
	o.Channel = cmp.Or(o.Channel, task.ChannelStable)
	o.Slots = cmp.Or(o.Slots, defaultSlots)
	o.Lease = cmp.Or(o.Lease, task.DefaultLease)
	o.Beat = cmp.Or(o.Beat, min(defaultBeat, o.Lease/6))
	o.StopTimeout = cmp.Or(o.StopTimeout, defaultStopTimeout)
	o.SoftStop = cmp.Or(o.SoftStop, o.StopTimeout/4)
	if o.ID == "" {
		o.ID = newID()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}

	var problems []error
	refuse := func(bad bool, setting, value, allowed string) {
		if bad {
			problems = append(problems, fmt.Errorf("worker option %s: %s is not allowed; give %s", setting, value, allowed))
		}
	}
	refuse(o.MongoURI == "", "MongoURI (AX_MONGO_URI)", "nothing", "the address of the database, such as mongodb://127.0.0.1:27017")
	// What can never work is refused now; what may come up later is waited for.
	if o.MongoURI != "" {
		if err := mongostore.CheckURI(o.MongoURI); err != nil {
			problems = append(problems, fmt.Errorf("worker option MongoURI (AX_MONGO_URI) is not allowed: %w", err))
		}
	}
	if o.NATSURL != "" {
		if err := natsbus.CheckURL(o.NATSURL); err != nil {
			problems = append(problems, fmt.Errorf("worker option NATSURL (AX_NATS_URL) is not allowed: %w", err))
		}
	}
	refuse(mongostore.CheckDatabase(o.Database) != nil, "Database (AX_MONGO_DB)", strconv.Quote(o.Database), mongostore.AllowedDatabase)
	refuse(!wellFormedID.MatchString(o.ID), "ID (AX_WORKER_ID)", strconv.Quote(o.ID), "1 to 128 characters of A-Z a-z 0-9 . _ : -")
	refuse(task.ValidateType(o.Channel) != nil, "Channel (AX_WORKER_CHANNEL)", strconv.Quote(o.Channel), "1 to 64 characters of a-z 0-9 _ -, beginning with a letter or digit")
	refuse(len(o.Version) > 128 || !plain(o.Version), "Version (AX_WORKER_VERSION)", strconv.Quote(cut(o.Version, 128)), "up to 128 bytes without control characters")
	refuse(o.Slots < 1 || o.Slots > maxSlots, "Slots (AX_WORKER_SLOTS)", strconv.Itoa(o.Slots), "a whole number from 1 to 10000")
	refuse(o.Lease < time.Second || o.Lease > time.Hour, "Lease (AX_WORKER_LEASE)", o.Lease.String(), "a duration from 1s to 1h")
	refuse(o.Beat < 100*time.Millisecond || o.Beat > o.Lease/2, "Beat (AX_WORKER_BEAT)", o.Beat.String(),
		fmt.Sprintf("a duration from 100ms to half of the lease, which is %v", o.Lease))
	refuse(o.StopTimeout < time.Second || o.StopTimeout > 10*time.Minute, "StopTimeout (AX_STOP_TIMEOUT)", o.StopTimeout.String(), "a duration from 1s to 10m")
	refuse(o.SoftStop < time.Millisecond || o.SoftStop > o.StopTimeout, "SoftStop (AX_WORKER_SOFT_STOP)", o.SoftStop.String(),
		fmt.Sprintf("a duration from 1ms to the stop timeout, which is %v", o.StopTimeout))
	return o, errors.Join(problems...)
}

// newID makes an id that no other process has, and that says where the process runs.
func newID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "worker"
	}
	host = strings.Map(func(r rune) rune {
		if wellFormedID.MatchString(string(r)) {
			return r
		}
		return '-'
	}, cut(host, 64))
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
}
