package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ax-scheduler/ax/pkg/events"
)

// Sizes are the largest sizes of the streams in bytes. NATS sets aside that much of its store, so their sum must fit. Zero
// takes the default: 256 MiB for submissions, 64 MiB for signals, 512 MiB for events, 64 MiB for dead letters.
type Sizes struct {
	Submit, Work, Event, Dead int64
}

const mib = 1 << 20

func (s Sizes) withDefaults() Sizes {
	return Sizes{
		Submit: cmp.Or(s.Submit, 256*mib), Work: cmp.Or(s.Work, 64*mib), Event: cmp.Or(s.Event, 512*mib), Dead: cmp.Or(s.Dead, 64*mib),
	}
}

const (
	day = 24 * time.Hour
	// dedupeWindow is how long a Nats-Msg-Id is remembered.
	dedupeWindow = 2 * time.Minute
	// maxSignalsPerLane is a safety net: a lane holds about a second of work.
	maxSignalsPerLane = 10_000
)

// Streams is the one table of streams and their settings.
func Streams(sizes Sizes, replicas int) []jetstream.StreamConfig {
	sizes = sizes.withDefaults()
	table := []jetstream.StreamConfig{
		{
			Name: events.StreamSubmit, Description: "Submissions on their way to the database.",
			Subjects:  []string{events.SubjectSubmitAll, events.SubjectWorkflow},
			Retention: jetstream.WorkQueuePolicy, MaxBytes: sizes.Submit,
			// Full means: the publisher is told. Nothing that was accepted is dropped, however old.
			Discard: jetstream.DiscardNew,
		},
		{
			Name: events.StreamWork, Description: "Signals that tell workers to look at tasks. May be lost without harm.",
			Subjects:  []string{events.SubjectWorkAll},
			Retention: jetstream.WorkQueuePolicy, MaxBytes: sizes.Work, MaxAge: 10 * time.Minute,
			Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: maxSignalsPerLane,
		},
		{
			Name: events.StreamEvent, Description: "Every change of a task's state.",
			Subjects:  []string{events.SubjectEventAll},
			Retention: jetstream.LimitsPolicy, MaxBytes: sizes.Event, MaxAge: 7 * day, Discard: jetstream.DiscardOld,
		},
		{
			Name: events.StreamDead, Description: "What could not be processed, with the reason and the original.",
			Subjects:  []string{events.SubjectDeadAll},
			Retention: jetstream.LimitsPolicy, MaxBytes: sizes.Dead, MaxAge: 30 * day, Discard: jetstream.DiscardOld,
		},
	}
	for i := range table {
		table[i].Storage = jetstream.FileStorage
		table[i].Duplicates = dedupeWindow
		table[i].Replicas = max(1, replicas)
	}
	return table
}

// streamState is what a bus knows about the streams.
type streamState struct {
	mu      sync.Mutex           // one check at a time
	created map[string]time.Time // when each was created, as last seen
	missing chan struct{}        // somebody met a stream that is not there
	told    map[string]bool      // created anew, as a consumer on this bus found, and not reported by the watcher yet
}

// streamMissing asks the watcher to look now.
func (b *Bus) streamMissing() {
	select {
	case b.streams.missing <- struct{}{}:
	default:
	}
}

// EnsureStreams creates the streams that are missing and brings the settings of the others up to date. It may be called
// at any time and by any number of processes. Anew lists the streams that were created by this call, or by anybody else
// since this bus last looked: what was in them before is gone.
//
// A stream whose retention or storage is another one is left alone and reported as an error: NATS cannot change those.
func (b *Bus) EnsureStreams(ctx context.Context) (anew []string, err error) {
	b.streams.mu.Lock()
	defer b.streams.mu.Unlock()
	return b.ensureStreams(ctx)
}

// recreateStreams is EnsureStreams for consumers that found their stream missing: what is anew is left to the watcher.
func (b *Bus) recreateStreams(ctx context.Context) error {
	b.streams.mu.Lock()
	defer b.streams.mu.Unlock()
	anew, err := b.ensureStreams(ctx)
	for _, name := range anew {
		if b.streams.told == nil {
			b.streams.told = make(map[string]bool)
		}
		b.streams.told[name] = true
	}
	b.streamMissing()
	return err
}

// ensureStreams must be called with the lock held.
func (b *Bus) ensureStreams(ctx context.Context) (anew []string, err error) {
	ctx, cancel := b.whileConnected(ctx)
	defer cancel()
	if b.streams.created == nil {
		b.streams.created = make(map[string]time.Time)
	}
	for _, want := range Streams(b.opts.Sizes, b.opts.Replicas) {
		info, made, err := b.ensureStream(ctx, want)
		if err != nil {
			return anew, fmt.Errorf("stream %s: %w", want.Name, cause(ctx, err))
		}
		before, known := b.streams.created[want.Name]
		if made || known && !before.Equal(info.Created) {
			anew = append(anew, want.Name)
		}
		b.streams.created[want.Name] = info.Created
	}
	return anew, nil
}

func (b *Bus) ensureStream(ctx context.Context, want jetstream.StreamConfig) (info *jetstream.StreamInfo, made bool, err error) {
	stream, err := b.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = b.js.CreateStream(ctx, want)
		switch {
		case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another process, with other settings, a moment ago
			stream, err = b.js.Stream(ctx, want.Name)
		case err == nil:
			made = true
			b.metrics.created.WithLabelValues(want.Name).Inc()
			b.log.Info("stream created", slog.String("stream", want.Name))
		}
	}
	if err != nil {
		return nil, false, explain(err, want)
	}
	info = stream.CachedInfo()
	next, err := merge(info.Config, want, b.opts.Replicas > 0)
	if err != nil || next == nil {
		return info, made, err
	}
	if stream, err = b.js.UpdateStream(ctx, *next); err != nil {
		return nil, made, explain(err, want)
	}
	b.log.Info("stream settings updated", slog.String("stream", want.Name))
	return stream.CachedInfo(), made, nil
}

// merge puts the settings of want over those of an existing stream; nil when they are the same. What ax has no opinion
// about (placement, mirrors, compression, ...) stays as the operator set it.
func merge(have, want jetstream.StreamConfig, replicas bool) (*jetstream.StreamConfig, error) {
	if have.Retention != want.Retention || have.Storage != want.Storage {
		return nil, fmt.Errorf("it exists with retention %s and storage %s, ax needs %s and %s; NATS cannot change that: save what is in it, delete it, and it is created anew",
			have.Retention, have.Storage, want.Retention, want.Storage)
	}
	next := have
	next.Subjects, next.Description = want.Subjects, want.Description
	next.MaxBytes, next.MaxAge, next.Duplicates = want.MaxBytes, want.MaxAge, want.Duplicates
	next.Discard, next.DiscardNewPerSubject, next.MaxMsgsPerSubject = want.Discard, want.DiscardNewPerSubject, want.MaxMsgsPerSubject
	if next.MaxMsgsPerSubject == 0 {
		next.MaxMsgsPerSubject = -1 // as the server reports "no limit"
	}
	if replicas {
		next.Replicas = want.Replicas
	}
	if slices.Equal(have.Subjects, next.Subjects) && have.Description == next.Description && have.MaxBytes == next.MaxBytes &&
		have.MaxAge == next.MaxAge && have.Duplicates == next.Duplicates && have.Discard == next.Discard &&
		have.DiscardNewPerSubject == next.DiscardNewPerSubject && have.MaxMsgsPerSubject == next.MaxMsgsPerSubject &&
		have.Replicas == next.Replicas {
		return nil, nil
	}
	return &next, nil
}

// explain adds a next step to what an operator has to change.
func explain(err error, want jetstream.StreamConfig) error {
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("JetStream does not answer: start NATS with -js, or enable JetStream for this account: %w", err)
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && (api.ErrorCode == codeStorageExceeded || api.ErrorCode == codeNoResources) {
		return fmt.Errorf("NATS has no room for its %d MiB: give it more (max_file_store), or ax less: %w", want.MaxBytes/mib, err)
	}
	return err
}

// StreamCreated returns when a stream was created. Another time than before means another stream: its messages, sequence
// numbers and consumers have nothing to do with the former ones.
func (b *Bus) StreamCreated(ctx context.Context, name string) (time.Time, error) {
	stream, err := b.js.Stream(ctx, name)
	if err != nil {
		return time.Time{}, fmt.Errorf("stream %s: %w", name, err)
	}
	return stream.CachedInfo().Created, nil
}

// checkStreams is EnsureStreams for the watcher, with what consumers found before.
func (b *Bus) checkStreams(ctx context.Context) (anew []string, err error) {
	b.streams.mu.Lock()
	defer b.streams.mu.Unlock()
	anew, err = b.ensureStreams(ctx)
	for name := range b.streams.told {
		if !slices.Contains(anew, name) {
			anew = append(anew, name)
		}
	}
	clear(b.streams.told)
	return anew, err
}

// watchInterval is how often WatchStreams looks without a reason.
const watchInterval = 5 * time.Second

// WatchStreams calls EnsureStreams until ctx ends: after each reconnect, when somebody on this bus met a missing stream,
// and every few seconds. onNew, if not nil, is called with the name of each stream that is another one than when this bus
// last looked, one call at a time. Failures are logged once and tried again.
func (b *Bus) WatchStreams(ctx context.Context, onNew func(stream string)) error {
	failing := false
	for ctx.Err() == nil {
		reconnected := b.nextReconnect()
		if b.nc.IsConnected() {
			anew, err := b.checkStreams(ctx)
			if err != nil && ctx.Err() == nil && !failing && !errors.Is(err, ErrDisconnected) {
				b.log.Warn("streams cannot be checked", slog.Any("err", err))
			}
			failing = err != nil
			for _, name := range anew {
				if onNew != nil {
					onNew(name)
				}
			}
		}
		timer := time.NewTimer(delay(1, watchInterval, watchInterval))
		select {
		case <-ctx.Done():
		case <-reconnected:
		case <-b.streams.missing:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// noteMissing asks the watcher to look when err says that a stream is not there.
func (b *Bus) noteMissing(err error) {
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) {
		b.streamMissing()
	}
}
