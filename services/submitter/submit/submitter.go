package submit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// Config are the submitter's settings. The zero value takes the defaults.
type Config struct {
	Batch   int           // most tasks in one insert; default 500
	AckWait time.Duration // after which AX_SUBMIT delivers again what nobody acknowledged; default 30 s
	Grace   time.Duration // what an insert on its way gets when the service stops; default 5 s
	Aside   time.Duration // after which a submission is tried again that could not be stored or buried; default 30 s
	Insert  time.Duration // what one insert may take before it counts as failed; default 15 s
}

// Submitter takes submissions from AX_SUBMIT. See the package comment for what it promises.
type Submitter struct {
	cfg     Config
	store   Inserter
	source  Source
	bus     Bus
	log     *slog.Logger
	metrics *metrics

	batches   *batcher
	held      *holder
	dead      chan *refusal
	deadBytes atomic.Int64 // of the bodies on their way into AX_DEAD

	noisy, noisyRefusals rate.Sometimes // so that the one kind of line does not hide the other
}

// New makes a submitter and registers its metrics.
func New(cfg Config, store Inserter, source Source, bus Bus, reg prometheus.Registerer, log *slog.Logger) *Submitter {
	set := func(value *time.Duration, otherwise time.Duration) {
		if *value <= 0 {
			*value = otherwise
		}
	}
	set(&cfg.AckWait, 30*time.Second)
	set(&cfg.Grace, 5*time.Second)
	set(&cfg.Aside, 30*time.Second)
	set(&cfg.Insert, 15*time.Second)
	if cfg.Batch <= 0 {
		cfg.Batch = 500
	}
	log = log.With("component", "submit")
	m := newMetrics(reg)
	batches := newBatcher(store, cfg, log, m)
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ax_submitter_failing_bool", Help: "1 while tasks cannot be stored, and submissions wait in NATS.",
	}, func() float64 {
		if batches.failure() == nil {
			return 0
		}
		return 1
	}))
	return &Submitter{cfg: cfg, store: store, source: source, bus: bus, log: log, metrics: m,
		batches: batches, held: newHolder(cfg.AckWait), dead: make(chan *refusal, cfg.Batch),
		noisy: seldom(), noisyRefusals: seldom()}
}

// seldom lets a line pass, and then one in ten seconds.
func seldom() rate.Sometimes { return rate.Sometimes{First: 1, Interval: 10 * time.Second} }

// Run takes submissions in until ctx ends, and closes the source. What is on its way into the database then is still stored and
// acknowledged; the rest is given back to the stream.
func (s *Submitter) Run(ctx context.Context) error {
	lingering, end := linger(ctx, s.cfg.Grace)
	defer end()
	// First the source, then all the rest: what is given back while this process still asks for more would be sent to it
	// again, and be missed by the others until the server loses patience.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var running, burying sync.WaitGroup
	running.Go(func() {
		defer stop()
		<-ctx.Done()
		s.source.Close()
	})
	burying.Go(func() { s.bury(lingering) })
	running.Go(func() { s.held.run(working) })
	running.Go(func() { s.batches.run(working) })
	running.Go(func() { s.batches.watch(working) })
	s.fetch(working, ctx.Done())
	running.Wait() // a conflict found by the last insert is still refused
	close(s.dead)
	burying.Wait()
	return nil
}

// Check returns why submissions cannot be stored at present, or nil.
func (s *Submitter) Check(context.Context) error {
	if err := s.batches.failure(); err != nil {
		return fmt.Errorf("tasks cannot be stored: %w", err)
	}
	return nil
}

// fetch brings messages in until ctx ends. While the database fails none are: they are safer in the stream. Once stopping is
// closed, the source may be too.
func (s *Submitter) fetch(ctx context.Context, stopping <-chan struct{}) {
	for attempt := 0; ctx.Err() == nil; {
		if s.batches.failure() != nil && !s.batches.answers(ctx) {
			attempt++
			pause(ctx, attempt)
			continue
		}
		msgs, err := s.source.NextBatch(ctx, s.cfg.Batch)
		if err != nil && ctx.Err() == nil {
			select {
			case <-stopping:
				<-ctx.Done()
				return
			default:
			}
			attempt++
			s.noisy.Do(func() { s.log.Warn("cannot fetch submissions; trying again", "err", err) })
			pause(ctx, attempt)
			continue
		}
		attempt = 0
		for _, m := range s.held.add(msgs) {
			s.take(ctx, m)
		}
	}
}

// take sends a message on its way: its task into the next batch, or its body into AX_DEAD.
func (s *Submitter) take(ctx context.Context, m *held) {
	t, err := s.build(ctx, m)
	if errors.Is(err, task.ErrClock) || ctx.Err() != nil {
		s.held.giveBack(m, 0)
		return
	}
	if err != nil {
		s.refuse(m, intake.Refusal(err))
		return
	}
	j := &job{task: t,
		settle: func(status task.InsertStatus, _ error) {
			answer, err := intake.Answer(t, status)
			if err != nil {
				s.refuse(m, intake.Refusal(err))
				return
			}
			s.held.ack(m)
			s.answer(m, answer)
		},
		setAside: func(soon bool) {
			if soon {
				s.held.giveBack(m, 0)
				return
			}
			s.held.giveBack(m, s.cfg.Aside)
		},
	}
	if s.batches.put(ctx, j) != nil {
		j.setAside(true)
	}
}

// build makes the task of a message. It fails with [task.ErrClock] when it can not be built for now.
func (s *Submitter) build(ctx context.Context, m *held) (*task.Task, error) {
	kind, ok := events.TypeOfSubmit(m.Subject)
	if !ok {
		return nil, &events.Error{Code: events.CodeUnsupported, Field: "subject", Value: events.Shorten(m.Subject),
			Message: "workflows are not supported by this version of ax; submit their tasks one by one to ax.submit.<type>"}
	}
	if err := task.ValidateType(kind); err != nil {
		return nil, err
	}
	if reply := m.Header.Get(events.HeaderReplyTo); reply != "" && !events.Answerable(reply) {
		return nil, events.Invalid(events.HeaderReplyTo, events.Shorten(reply),
			"a subject to publish to, without wildcards and not beginning with ax. or $")
	}
	sub, err := events.DecodeSubmit(m.Data)
	if err != nil {
		return nil, err
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	return intake.Build(&sub, intake.Origin{
		Type: kind, ID: events.DeriveID(m.Timestamp, m.Sequence, m.Subject), Repeated: m.Delivered > 1,
		Source: intake.SourceNATS, Traceparent: m.Header.Get(events.HeaderTraceparent), Now: now, At: m.Timestamp, Body: m.Data,
	})
}

// now waits until the database's time is known: without it a delay cannot be resolved, and nothing can be stored either.
func (s *Submitter) now(ctx context.Context) (time.Time, error) {
	for attempt := 1; ; attempt++ {
		now, _, err := s.store.Now()
		if err == nil {
			return now, nil
		}
		s.batches.failed(err)
		if pause(ctx, attempt); ctx.Err() != nil {
			return time.Time{}, fmt.Errorf("%w: %w", task.ErrClock, ctx.Err())
		}
	}
}

// answer tells the sender, if the message says where. It may be lost: a sender who must know asks ax.api.
func (s *Submitter) answer(m *held, a events.Answer) {
	to := m.Header.Get(events.HeaderReplyTo)
	if to == "" || !events.Answerable(to) {
		return
	}
	if err := s.bus.Answer(to, a); err != nil {
		s.noisy.Do(func() { s.log.Warn("an answer was not sent", "task_id", a.ID, "err", err) })
	}
}
