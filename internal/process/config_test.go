package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type reaperConfig struct {
	WithNATS
	Sweep  time.Duration `envconfig:"REAPER_SWEEP" default:"5s" min:"100ms" max:"1m" desc:"time between sweeps"`
	Batch  int           `envconfig:"REAPER_BATCH" default:"500" max:"5000" desc:"tasks revived at once"`
	Keep   time.Duration `envconfig:"REAPER_KEEP" default:"720h" desc:"how long finished tasks stay"`
	Share  float64       `envconfig:"REAPER_SHARE" default:"0.1" min:"0" max:"1" desc:"share"`
	DryRun bool          `envconfig:"REAPER_DRY_RUN" default:"false" desc:"only look"`
	Types  []string      `envconfig:"REAPER_TYPES" desc:"task types"`
}

// cleanEnv gives the test an environment with only the given variables of ax.
func cleanEnv(t *testing.T, vars ...string) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "AX_") {
			require.NoError(t, os.Unsetenv(name))
			t.Cleanup(func() { require.NoError(t, os.Setenv(name, value)) })
		}
	}
	for i := 0; i < len(vars); i += 2 {
		t.Setenv(vars[i], vars[i+1])
	}
}

func TestLoadReadsTheEnvironmentAndTheDefaults(t *testing.T) {
	cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus", "AX_REAPER_SWEEP", "250ms",
		"AX_REAPER_TYPES", "email,report", "AX_REAPER_DRY_RUN", "true", "AX_REAPER_SHARE", "0")
	var c reaperConfig
	require.NoError(t, Load("reaper", &c))
	require.Equal(t, reaperConfig{
		WithNATS: WithNATS{NATSURL: "nats://bus", Common: Common{
			MongoURI: "mongodb://db", Database: "ax", HTTPAddr: "127.0.0.1:7803",
			LogFormat: "text", LogLevel: "info", StopTimeout: 10 * time.Second,
		}},
		Sweep: 250 * time.Millisecond, Batch: 500, Keep: 720 * time.Hour, Share: 0, DryRun: true, Types: []string{"email", "report"},
	}, c)
}

func TestLoadKeepsAnAddressTheServiceChose(t *testing.T) {
	cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus")
	c := reaperConfig{WithNATS: WithNATS{Common: Common{HTTPAddr: "127.0.0.1:1"}}}
	require.NoError(t, Load("reaper", &c))
	require.Equal(t, "127.0.0.1:1", c.HTTPAddr)
	t.Setenv("AX_HTTP_ADDR", "127.0.0.1:2")
	require.NoError(t, Load("reaper", &c))
	require.Equal(t, "127.0.0.1:2", c.HTTPAddr)
}

func TestLoadRefuses(t *testing.T) {
	for _, tc := range []struct{ name, variable, value, problem string }{
		{"misspelt common", "AX_NATS_URI", "x", `AX_NATS_URI is not a variable of the reaper; did you mean AX_NATS_URL?`},
		{"misspelt own", "AX_REAPER_SWEEPS", "5s", `AX_REAPER_SWEEPS is not a variable of the reaper; did you mean AX_REAPER_SWEEP?`},
		{"own prefix misspelt", "AX_REPAER_BATCH", "5", `AX_REPAER_BATCH is not a variable of the reaper; did you mean AX_REAPER_BATCH?`},
		{"prefix of another misspelt", "AX_SUBMITER_LINGER", "5ms", `AX_SUBMITER_LINGER is not a variable of the reaper; did you mean AX_SUBMITTER_LINGER?`},
		{"zero duration", "AX_REAPER_SWEEP", "0", `AX_REAPER_SWEEP="0" is not allowed; it takes a duration with a unit (such as 500ms, 30s or 5m) from 100ms to 1m`},
		{"negative duration", "AX_REAPER_SWEEP", "-5s", `AX_REAPER_SWEEP="-5s" is not allowed; it takes a duration with a unit (such as 500ms, 30s or 5m) from 100ms to 1m`},
		{"missing unit", "AX_REAPER_SWEEP", "30", `AX_REAPER_SWEEP="30" is not allowed; it takes a duration with a unit (such as 500ms, 30s or 5m) from 100ms to 1m`},
		{"misspelt duration", "AX_REAPER_SWEEP", "5sec", `AX_REAPER_SWEEP="5sec" is not allowed`},
		{"over the range", "AX_REAPER_SWEEP", "61s", `from 100ms to 1m`},
		{"zero without min", "AX_REAPER_KEEP", "0s", `AX_REAPER_KEEP="0s" is not allowed; it takes a duration with a unit (such as 500ms, 30s or 5m) above 0`},
		{"negative number", "AX_REAPER_BATCH", "-1", `AX_REAPER_BATCH="-1" is not allowed; it takes a whole number above 0 and at most 5000`},
		{"zero number", "AX_REAPER_BATCH", "0", `AX_REAPER_BATCH="0" is not allowed`},
		{"not a number", "AX_REAPER_BATCH", "many", `AX_REAPER_BATCH="many" is not allowed`},
		{"share over one", "AX_REAPER_SHARE", "1.5", `AX_REAPER_SHARE="1.5" is not allowed; it takes a number from 0 to 1`},
		{"not a bool", "AX_REAPER_DRY_RUN", "maybe", `AX_REAPER_DRY_RUN="maybe" is not allowed; it takes true or false`},
		{"log format", "AX_LOG_FORMAT", "xml", `AX_LOG_FORMAT="xml" is not allowed; it takes one of text, json`},
		{"empty log level", "AX_LOG_LEVEL", "", `AX_LOG_LEVEL="" is not allowed; it takes one of debug, info, warn, error`},
		{"empty duration", "AX_STOP_TIMEOUT", "", `AX_STOP_TIMEOUT="" is not allowed`},
		{"no bus", "AX_NATS_URL", "", `AX_NATS_URL is not set: address of NATS`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus")
			t.Setenv(tc.variable, tc.value)
			var c reaperConfig
			err := Load("reaper", &c)
			var refused *ConfigError
			require.ErrorAs(t, err, &refused)
			require.Len(t, refused.Problems, 1)
			require.Contains(t, refused.Problems[0], tc.problem)
			require.Equal(t, tc.value, os.Getenv(tc.variable), "the environment is as before")
		})
	}
}

func TestLoadReportsAllProblemsAtOnce(t *testing.T) {
	cleanEnv(t, "AX_REAPER_SWEEP", "30", "AX_REAPER_BATCH", "x", "AX_REAPER_KEEP", "-1h", "AX_LOG_LEVL", "debug", "AX_NATS_URL", "nats://bus")
	err := Load("reaper", &reaperConfig{})
	require.EqualError(t, err, `5 problems in the configuration of the reaper:
  - AX_LOG_LEVL is not a variable of the reaper; did you mean AX_LOG_LEVEL?
  - AX_MONGO_URI is not set: connection string of MongoDB 7.0 or later; a replica set, for change streams and transactions
  - AX_REAPER_SWEEP="30" is not allowed; it takes a duration with a unit (such as 500ms, 30s or 5m) from 100ms to 1m
  - AX_REAPER_BATCH="x" is not allowed; it takes a whole number above 0 and at most 5000
  - AX_REAPER_KEEP="-1h" is not allowed; it takes a duration with a unit (such as 500ms, 30s or 5m) above 0`)
	_, set := os.LookupEnv("AX_MONGO_URI")
	require.False(t, set, "the environment is as before")
	require.Equal(t, "30", os.Getenv("AX_REAPER_SWEEP"))
}

func TestLoadRefusesAnAddressThatIsNone(t *testing.T) {
	for addr, good := range map[string]bool{"7801": false, "localhost": false, "h:": false, "h:http": false, "h:-1": false, "h:65536": false, "::1:80": false,
		"127.0.0.1:0": true, ":7801": true, "[::1]:80": true, "localhost:65535": true} {
		cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus", "AX_HTTP_ADDR", addr)
		err := Load("reaper", &reaperConfig{})
		if good {
			require.NoError(t, err, addr)
			continue
		}
		require.EqualError(t, err, fmt.Sprintf(`1 problem in the configuration of the reaper:
  - AX_HTTP_ADDR=%q is not allowed; it takes host:port, such as 127.0.0.1:7803 or :7800, with a port from 0 to 65535`, addr))
	}
}

// checked finds two faults by looking closer.
type checked struct{ Common }

func (*checked) Check() error {
	return errors.Join(errors.New("AX_MONGO_URI is wrong"), fmt.Errorf("AX_MONGO_DB: %w", errors.New("is wrong too")))
}

func TestLoadReportsEachProblemThatACheckFinds(t *testing.T) {
	cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus") // the bus is another's, and known
	err := Load("reaper", &checked{})
	require.EqualError(t, err, `2 problems in the configuration of the reaper:
  - AX_MONGO_URI is wrong
  - AX_MONGO_DB: is wrong too`)
}

func TestLoadPassesOverWhatIsNotMeantForIt(t *testing.T) {
	cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus",
		// Other services' variables, right or wrong, are theirs to judge.
		"AX_SUBMITTER_ANYTHING", "x", "AX_DISPATCHER_ANYTHING", "x", "AX_NOTIFIER_ANYTHING", "x", "AX_CRON_ANYTHING", "x",
		"AX_GATEWAY_ANYTHING", "x", "AX_WORKER_ANYTHING", "x", "AX_CLI_ANYTHING", "x",
		// What Kubernetes gives every container when a Service is named ax-reaper.
		"AX_REAPER_SERVICE_HOST", "10.0.0.1", "AX_REAPER_SERVICE_PORT", "80", "AX_REAPER_SERVICE_PORT_HTTP", "80",
		"AX_REAPER_PORT", "tcp://10.0.0.1:80", "AX_REAPER_PORT_80_TCP", "tcp://10.0.0.1:80", "AX_REAPER_PORT_80_TCP_ADDR", "10.0.0.1",
		// Names without the prefix are for other programs, even when they look like ours.
		"LOG_LEVEL", "debug", "MONGO_DB", "theirs", "AXE", "x", "STOP_TIMEOUT", "soon")
	var c reaperConfig
	require.NoError(t, Load("reaper", &c))
	require.Equal(t, "info", c.LogLevel)
	require.Equal(t, "ax", c.Database)
	require.Equal(t, "debug", os.Getenv("LOG_LEVEL"), "put back")
}

func TestLoadDoesNotTakeAPortForKubernetesOwn(t *testing.T) {
	cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus", "AX_REAPER_PORT", "80")
	require.ErrorContains(t, Load("reaper", &reaperConfig{}), "AX_REAPER_PORT is not a variable of the reaper")
}

func TestLoadNeverShowsASecret(t *testing.T) {
	type config struct {
		Common
		Key int `envconfig:"REAPER_KEY" default:"1" secret:"true" desc:"a secret number"`
	}
	cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus", "AX_REAPER_KEY", "hunter2")
	err := Load("reaper", &config{})
	require.ErrorContains(t, err, "AX_REAPER_KEY has a value that is not allowed")
	require.NotContains(t, err.Error(), "hunter2")
}

func TestLoadRefusesAMistakeInTheProgram(t *testing.T) {
	cleanEnv(t)
	for want, spec := range map[string]any{
		"not a pointer to a struct": Common{},
		"needs a tag":               &struct{ A int }{},
		"must begin with AX_REAPER_": &struct {
			A int `envconfig:"LEASE"`
		}{},
		"tag min": &struct {
			A time.Duration `envconfig:"REAPER_A" min:"5"`
		}{},
		"tag max": &struct {
			A int `envconfig:"REAPER_A" max:"many"`
		}{},
		"only a text can be required": &struct {
			A int `envconfig:"REAPER_A" required:"true"`
		}{},
		"the default of AX_REAPER_B cannot be": &struct {
			B int `envconfig:"REAPER_B" default:"x"`
		}{},
		"the default of AX_REAPER_C is outside": &struct {
			C int `envconfig:"REAPER_C" default:"0"`
		}{},
	} {
		err := Load("reaper", spec)
		require.ErrorContains(t, err, want)
		var refused *ConfigError
		require.NotErrorAs(t, err, &refused, "not the user's fault: %v", err)
	}
}

func TestEveryServicesAddressDiffers(t *testing.T) {
	seen := map[string]string{}
	for service := range services {
		addr := defaultHTTPAddr(service)
		if strings.HasSuffix(addr, ":0") {
			continue
		}
		require.Empty(t, seen[addr], "%s and %s", service, seen[addr])
		seen[addr] = service
	}
}

func TestVariablesDescribeTheSpec(t *testing.T) {
	vars := Variables("reaper", &reaperConfig{})
	require.Len(t, vars, 14)
	require.Equal(t, Variable{
		Name: "AX_MONGO_URI", Range: "a text", Required: true, Secret: true, Shared: true,
		Description: "connection string of MongoDB 7.0 or later; a replica set, for change streams and transactions",
	}, vars[0])
	require.Equal(t, "127.0.0.1:7803", vars[2].Default, "the address is the service's own")
	require.Equal(t, Variable{
		Name: "AX_REAPER_SWEEP", Default: "5s", Description: "time between sweeps",
		Range: "a duration with a unit (such as 500ms, 30s or 5m) from 100ms to 1m",
	}, vars[8])
	for _, v := range vars {
		require.NotEmpty(t, v.Description, v.Name)
	}
	require.Panics(t, func() { Variables("reaper", Common{}) })
}

func TestRedactHidesUsersAndPasswords(t *testing.T) {
	for in, want := range map[string]string{
		"dial mongodb://ax:p@ss/w@db:27017/?x=1: refused": "dial mongodb://***@db:27017/?x=1: refused",
		"nats://token@bus:4222":                           "nats://***@bus:4222",
		"nats://u:p@a,nats://u:q@b":                       "nats://***@b",
		"mongodb://db:27017/ is down, mail me@example":    "mongodb://db:27017/ is down, mail me@example",
	} {
		require.Equal(t, want, Redact(in))
	}
}

// Whatever stands in the environment, a configuration is loaded within its limits or refused by name.
func FuzzLoad(f *testing.F) {
	for _, v := range [][2]string{{"AX_REAPER_SWEEP", "5s"}, {"AX_REAPER_SWEEP", "5"}, {"AX_REAPER_SWEEP", "-1s"}, {"AX_REAPER_SWEEP", "9999999h"},
		{"AX_REAPER_BATCH", "0"}, {"AX_REAPER_BATCH", "1e3"}, {"AX_REAPER_SHARE", "NaN"}, {"AX_REAPER_SHARE", "1.0000001"}, {"AX_REAPER_DRY_RUN", "perhaps"},
		{"AX_REAPER_TYPES", ",,"}, {"AX_REAPER_SWEEPS", "5s"}, {"AX_LOG_LEVEL", "loud"}, {"AX_HTTP_ADDR", ":"}, {"AX_STOP_TIMEOUT", "1ns"}, {"AX_", ""}} {
		f.Add(v[0], v[1])
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		if !strings.HasPrefix(name, "AX_") || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			t.Skip("no variable of ax that an environment could hold")
		}
		cleanEnv(t, "AX_MONGO_URI", "mongodb://db", "AX_NATS_URL", "nats://bus", name, value)
		var c reaperConfig
		if err := Load("reaper", &c); err != nil {
			wrong, ok := errors.AsType[*ConfigError](err)
			require.True(t, ok, "%v", err)
			require.NotEmpty(t, wrong.Problems)
			for _, p := range wrong.Problems {
				require.Contains(t, p, "AX_", "a problem names its variable")
			}
			return
		}
		require.True(t, c.Sweep >= 100*time.Millisecond && c.Sweep <= time.Minute, "%v", c.Sweep)
		require.True(t, c.Batch >= 1 && c.Batch <= 5000, "%v", c.Batch)
		require.True(t, c.Share >= 0 && c.Share <= 1, "%v", c.Share)
		require.Positive(t, c.Keep)
		require.Positive(t, c.StopTimeout)
		require.Contains(t, []string{"text", "json"}, c.LogFormat)
	})
}
