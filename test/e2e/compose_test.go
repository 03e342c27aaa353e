package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/process"
)

const repository = "../.."

// composeFile is deploy/compose/compose.yaml as Docker Compose reads it.
func composeFile(t *testing.T) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(repository, "deploy/compose/compose.yaml")})
	require.NoError(t, err)
	project, err := opts.LoadProject(t.Context())
	require.NoError(t, err)
	return project
}

// built are the services of the compose file that are made from this repository, with the folder of each one's main package.
func built(t *testing.T, project *types.Project) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, s := range project.Services {
		if s.Build == nil {
			continue
		}
		require.NotNil(t, s.Build.Args["SERVICE"], "%s says what it is built from", name)
		out[name] = *s.Build.Args["SERVICE"]
	}
	return out
}

// environment is that of a service, as its container has it.
func environment(t *testing.T, s types.ServiceConfig) map[string]string {
	t.Helper()
	env := map[string]string{}
	for name, value := range s.Environment {
		require.NotNil(t, value, "%s of the %s has a value", name, s.Name)
		env[name] = *value
	}
	return env
}

func TestComposeFileHoldsTheWholeSystem(t *testing.T) {
	project := composeFile(t)
	programs := built(t, project)
	require.ElementsMatch(t, localstack.ServiceNames, slices.Collect(maps.Keys(programs)), "each service of ax, and no other program")
	for name, folder := range programs {
		require.Equal(t, "services/"+name, folder)
		s := project.Services[name]
		env := environment(t, s)

		stop, err := time.ParseDuration(env["AX_STOP_TIMEOUT"])
		require.NoError(t, err)
		require.NotNil(t, s.StopGracePeriod, "%s: Compose kills after 10 s unless told otherwise", name)
		require.Greater(t, time.Duration(*s.StopGracePeriod), stop, "%s is not killed while it stops", name)

		// Every host that it is sent to is a service, on the port that it serves.
		mongo := options.Client().ApplyURI(env["AX_MONGO_URI"])
		require.NoError(t, mongo.Validate())
		require.NotEmpty(t, mongo.Hosts)
		for _, address := range mongo.Hosts {
			host, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			server, ok := project.Services[host]
			require.True(t, ok, "%s connects to %s, which is no service", name, host)
			require.Equal(t, "27017", port)
			require.NotNil(t, mongo.ReplicaSet)
			at := slices.Index(server.Command, "--replSet")
			require.GreaterOrEqual(t, at, 0)
			require.Equal(t, *mongo.ReplicaSet, server.Command[at+1])
		}
		nats, err := url.Parse(env["AX_NATS_URL"])
		require.NoError(t, err)
		require.Contains(t, project.Services, nats.Hostname(), name)
		require.Equal(t, "4222", nats.Port())
		for _, needed := range append(mongo.Hosts[:1:1], nats.Host) {
			host, _, _ := strings.Cut(needed, ":")
			require.Contains(t, s.DependsOn, host, "%s starts after what it connects to", name)
		}
	}
	for name, s := range project.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				require.FileExists(t, v.Source, "%s mounts it at %s", name, v.Target)
			} else {
				require.Contains(t, project.Volumes, v.Source, name)
			}
		}
		require.NotEmpty(t, cmp.Or(s.Restart, ""), "%s comes back after a failure", name)
	}
}

// Each service gets ready with the environment of the compose file and nothing else, logs as it says there, answers the health
// check, and stops in order. Only the addresses, and the name of the database, are the test's.
func TestServicesRunWithTheEnvironmentOfTheComposeFile(t *testing.T) {
	project := composeFile(t)
	mongo, database := stacktest.Mongo(t), stacktest.Database(t)
	nats := stacktest.NATS(t)
	for name := range built(t, project) {
		t.Run(name, func(t *testing.T) {
			env := environment(t, project.Services[name])
			replace := func(variable, value string) {
				require.Contains(t, env, variable)
				env[variable] = value
			}
			replace("AX_MONGO_URI", mongo.URI())
			replace("AX_MONGO_DB", database)
			replace("AX_NATS_URL", nats.URL())
			host, _, err := net.SplitHostPort(env["AX_HTTP_ADDR"])
			require.NoError(t, err)
			replace("AX_HTTP_ADDR", net.JoinHostPort(host, "0"))
			assignments := func() (list []string) {
				for variable, value := range env {
					list = append(list, variable+"="+value)
				}
				return list
			}

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			path := localstack.ServicePath(bin, name)
			s, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: name, Path: path, Env: assignments(), EnvOnly: true})
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Stop(0)) }()
			require.NoError(t, s.WaitReady(ctx))

			served, err := url.Parse(s.URL())
			require.NoError(t, err)
			replace("AX_HTTP_ADDR", net.JoinHostPort(host, served.Port()))
			check := project.Services[name].HealthCheck
			require.NotNil(t, check)
			require.Equal(t, "CMD", check.Test[0], "the image holds no shell")
			asked := exec.CommandContext(ctx, path, check.Test[2:]...)
			asked.Env = assignments()
			out, err := asked.CombinedOutput()
			require.NoError(t, err, "%s", out)

			require.NoError(t, s.Stop(time.Duration(*project.Services[name].StopGracePeriod)))
			require.NoError(t, s.ExitError(), s.Output())
			for line := range strings.Lines(s.Output()) {
				var entry struct{ Level, Msg, Component string }
				require.NoError(t, json.Unmarshal([]byte(line), &entry), "the log is JSON: %s", line)
				require.NotEqual(t, "ERROR", entry.Level, line)
				require.True(t, strings.HasPrefix(entry.Component, name), line)
			}
			asked = exec.CommandContext(ctx, path, check.Test[2:]...)
			asked.Env = assignments()
			require.Error(t, asked.Run(), "the health check fails when it is gone")
			require.Equal(t, process.ExitFailed, asked.ProcessState.ExitCode())
		})
	}
}
