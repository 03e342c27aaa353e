package worker

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const someURI = "mongodb://127.0.0.1:27017"

func TestOptionsAreRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   []string
	}{
		"no database":       {func(o *Options) { o.MongoURI = "" }, []string{"MongoURI", "AX_MONGO_URI"}},
		"negative slots":    {func(o *Options) { o.Slots = -1 }, []string{"Slots", "AX_WORKER_SLOTS", "-1", "1 to 10000"}},
		"too many slots":    {func(o *Options) { o.Slots = 10_001 }, []string{"Slots", "10001"}},
		"short lease":       {func(o *Options) { o.Lease = time.Millisecond }, []string{"Lease", "AX_WORKER_LEASE", "1s to 1h"}},
		"negative lease":    {func(o *Options) { o.Lease = -time.Second }, []string{"Lease"}},
		"negative beat":     {func(o *Options) { o.Beat = -time.Second }, []string{"Beat", "AX_WORKER_BEAT"}},
		"beat as lease":     {func(o *Options) { o.Lease, o.Beat = 10*time.Second, 10*time.Second }, []string{"Beat", "10s", "half of the lease"}},
		"beat over lease":   {func(o *Options) { o.Lease, o.Beat = 10*time.Second, time.Minute }, []string{"Beat"}},
		"short stop":        {func(o *Options) { o.StopTimeout = time.Millisecond }, []string{"StopTimeout", "AX_STOP_TIMEOUT"}},
		"soft over hard":    {func(o *Options) { o.StopTimeout, o.SoftStop = 5*time.Second, 6*time.Second }, []string{"SoftStop", "AX_WORKER_SOFT_STOP", "5s"}},
		"negative soft":     {func(o *Options) { o.SoftStop = -1 }, []string{"SoftStop"}},
		"bar in id":         {func(o *Options) { o.ID = "a|b" }, []string{"ID", "AX_WORKER_ID", "a|b"}},
		"long id":           {func(o *Options) { o.ID = strings.Repeat("a", 129) }, []string{"ID"}},
		"channel":           {func(o *Options) { o.Channel = "a.b" }, []string{"Channel", "AX_WORKER_CHANNEL"}},
		"version":           {func(o *Options) { o.Version = "1\x1b[31m" }, []string{"Version", "AX_WORKER_VERSION"}},
		"several at a time": {func(o *Options) { o.Slots, o.Lease = -1, -1 }, []string{"Slots", "Lease"}},
	} {
		o := Options{MongoURI: someURI}
		c.change(&o)
		_, err := New(o)
		require.Error(t, err, name)
		for _, want := range c.want {
			require.ErrorContains(t, err, want, name)
		}
	}
}

func TestOptionsDefaults(t *testing.T) {
	o, err := Options{MongoURI: someURI}.complete()
	require.NoError(t, err)
	require.Equal(t, "ax", o.Database)
	require.Equal(t, "stable", o.Channel)
	require.Equal(t, 20, o.Slots)
	require.Equal(t, 30*time.Second, o.Lease)
	require.Equal(t, 5*time.Second, o.Beat)
	require.Equal(t, 10*time.Second, o.StopTimeout)
	require.Equal(t, 2500*time.Millisecond, o.SoftStop)
	other, err := Options{MongoURI: someURI, Lease: time.Second}.complete()
	require.NoError(t, err, "the beat follows a short lease")
	require.NotEqual(t, o.ID, other.ID)
}

func TestFromEnv(t *testing.T) {
	t.Setenv("AX_MONGO_URI", someURI)
	o, err := FromEnv()
	require.NoError(t, err)
	same, err := Options{MongoURI: someURI, ID: "x"}.complete()
	require.NoError(t, err)
	o, err = func() (Options, error) { o.ID = "x"; return o.complete() }()
	require.NoError(t, err)
	require.Equal(t, same, o, "both ways have the same defaults")

	for name, value := range map[string]string{"AX_MONGO_DB": "other", "AX_NATS_URL": "nats://n:4222", "AX_WORKER_ID": "w7", "AX_WORKER_CHANNEL": "canary",
		"AX_WORKER_VERSION": "1.2", "AX_WORKER_SLOTS": "7", "AX_WORKER_LEASE": "10s", "AX_WORKER_BEAT": "1s", "AX_STOP_TIMEOUT": "9s", "AX_WORKER_SOFT_STOP": "3s"} {
		t.Setenv(name, value)
	}
	o, err = FromEnv()
	require.NoError(t, err)
	require.Equal(t, Options{MongoURI: someURI, Database: "other", NATSURL: "nats://n:4222", ID: "w7", Channel: "canary", Version: "1.2", Slots: 7,
		Lease: 10 * time.Second, Beat: time.Second, StopTimeout: 9 * time.Second, SoftStop: 3 * time.Second}, o)
}

func TestFromEnvRefuses(t *testing.T) {
	for name, values := range map[string][]string{
		"AX_WORKER_SLOTS":     {"0", "-1", "abc", "", "10 ", "1e9", "10001", "9223372036854775808"},
		"AX_WORKER_LEASE":     {"0", "0s", "-5s", "30", "abc", "2h"},
		"AX_WORKER_BEAT":      {"0s", "-1s", "5", "30s", "16s"}, // 30s is the lease
		"AX_STOP_TIMEOUT":     {"0s", "-1s", "10", "11m"},
		"AX_WORKER_SOFT_STOP": {"0s", "-1s", "11s"}, // over the stop timeout
		"AX_WORKER_CHANNEL":   {"A", "a.b"},
		"AX_WORKER_ID":        {"a b", "a|b"},
		"AX_MONGO_DB":         {"$x/ y", "admin"},
		"AX_MONGO_URI":        {"", "nonsense", "mongodb://", "http://db", "mongodb://db/?readPreference=nearest"},
		"AX_NATS_URL":         {"nats://a b", "mongodb://db"},
	} {
		for _, value := range values {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Setenv("AX_MONGO_URI", someURI)
				t.Setenv(name, value)
				_, err := FromEnv()
				require.ErrorContains(t, err, name)
			})
		}
	}
	t.Run("misspelt", func(t *testing.T) {
		t.Setenv("AX_MONGO_URI", someURI)
		t.Setenv("AX_WORKER_SLOT", "7")
		_, err := FromEnv()
		require.ErrorContains(t, err, "AX_WORKER_SLOTS")
	})
}

func TestMistakesOfRegistrationAreFoundByRun(t *testing.T) {
	handler := func(context.Context, Task) (any, error) { return nil, nil }
	for name, c := range map[string]struct {
		register func(*Worker)
		want     string
	}{
		"nothing":          {func(*Worker) {}, "no task type has a handler"},
		"illegal type":     {func(w *Worker) { HandleFunc(w, "a.b", handler) }, `"a.b"`},
		"twice":            {func(w *Worker) { HandleFunc(w, "a", handler); HandleFunc(w, "a", handler) }, "has a handler already"},
		"nil":              {func(w *Worker) { HandleFunc(w, "a", nil) }, "handler is nil"},
		"typed nil":        {func(w *Worker) { Handle[int, int](w, "a", nil) }, "handler is nil"},
		"zero concurrency": {func(w *Worker) { HandleFunc(w, "a", handler, Concurrency(0)) }, "at least 1"},
		"below zero":       {func(w *Worker) { HandleFunc(w, "a", handler, Concurrency(-3)) }, "at least 1"},
	} {
		w, err := New(Options{MongoURI: someURI})
		require.NoError(t, err)
		c.register(w)
		require.ErrorContains(t, w.Run(t.Context()), c.want, name)
	}
}

func TestMiddlewareOrder(t *testing.T) {
	w, err := New(Options{MongoURI: someURI})
	require.NoError(t, err)
	var order []string
	note := func(name string) Wrapper {
		return func(next Handler) Handler {
			return func(ctx context.Context, t Task) (any, error) {
				order = append(order, name)
				return next(ctx, t)
			}
		}
	}
	Handle(w, "a", func(context.Context, struct{}) (string, error) {
		order = append(order, "handler")
		return "result", nil
	}, Middleware(note("inner 1"), note("inner 2")))
	w.Use(note("outer 1"))
	w.Use(note("outer 2"))
	kinds, err := w.begin()
	require.NoError(t, err)
	end := kinds[0].invoke(t.Context(), Task{})
	require.Equal(t, `"result"`, string(end.result))
	require.Equal(t, []string{"outer 1", "outer 2", "inner 1", "inner 2", "handler"}, order)
}

func TestConcurrencyIsNeverOverTheSlots(t *testing.T) {
	w, err := New(Options{MongoURI: someURI, Slots: 5})
	require.NoError(t, err)
	handler := func(context.Context, Task) (any, error) { return nil, nil }
	HandleFunc(w, "all", handler)
	HandleFunc(w, "many", handler, Concurrency(50))
	HandleFunc(w, "few", handler, Concurrency(2))
	kinds, err := w.begin()
	require.NoError(t, err)
	require.Equal(t, []int{5, 5, 2}, []int{kinds[0].limit, kinds[1].limit, kinds[2].limit})
}
