package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/process"
)

// Services that start before the database or NATS say what they wait for and where, try again, and are ready when both answer.
func TestServicesWaitForWhatIsNotThereYet(t *testing.T) {
	const database, nats = "database", "NATS"
	withoutNATS := map[string]bool{"reaper": true, "cron": true}
	for name, away := range map[string][]string{ // in the order in which they come back
		"no database":      {database},
		"no NATS":          {nats},
		"neither":          {database, nats},
		"neither, NATS is": {nats, database},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mongo, bus := stacktest.StartMongo(t, localstack.MongoOptions{}), stacktest.NATS(t)
			addresses := map[string]string{
				database: strings.TrimPrefix(strings.SplitN(mongo.URI(), "/?", 2)[0], "mongodb://"), nats: strings.TrimPrefix(bus.URL(), "nats://"),
			}
			variables := map[string]string{database: "AX_MONGO_URI", nats: "AX_NATS_URL"}
			down := map[string]bool{}
			for _, one := range away {
				down[one] = true
			}
			if down[database] {
				require.NoError(t, mongo.Kill())
			}
			if down[nats] {
				require.NoError(t, bus.Down())
			}

			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			all := map[string]*localstack.Service{}
			for _, name := range localstack.ServiceNames {
				s, err := localstack.StartService(ctx, localstack.ServiceOptions{Name: name, Path: localstack.ServicePath(bin, name),
					Env: []string{"AX_MONGO_URI=" + mongo.URI(), "AX_NATS_URL=" + bus.URL()}})
				require.NoError(t, err)
				defer func() { require.NoError(t, s.Stop(0)) }()
				all[name] = s
			}
			// Each waits for the database first, then for NATS if it needs it.
			look := func() {
				for name, s := range all {
					missing := ""
					switch {
					case down[database]:
						missing = database
					case down[nats] && !withoutNATS[name]:
						missing = nats
					default:
						require.NoError(t, s.WaitReady(ctx))
						continue
					}
					var waits []process.Wait
					stacktest.Eventually(t, time.Minute, name+" says that it waits for "+missing, func() bool {
						waits = waitingFor(t, s)
						return strings.Contains(reasonOf(waits, missing), variables[missing])
					})
					require.Contains(t, reasonOf(waits, missing), addresses[missing])
					require.Contains(t, s.Output(), `msg="not yet, trying again"`)
					require.Contains(t, s.Output(), "what="+missing)
				}
			}
			look()
			for _, back := range away {
				down[back] = false
				if back == database {
					require.NoError(t, mongo.Restart(ctx))
				} else {
					require.NoError(t, bus.Restart(ctx))
				}
				look()
			}
			for name, s := range all {
				if down := away[0]; len(away) > 1 || down == database || !withoutNATS[name] {
					require.Contains(t, s.Output(), `msg="it works now"`)
				}
				require.NoError(t, s.Stop(15*time.Second))
				require.NoError(t, s.ExitError(), s.Output())
			}
		})
	}
}

// waitingFor asks a service what it waits for before it is ready.
func waitingFor(t *testing.T, s *localstack.Service) []process.Wait {
	t.Helper()
	answer, err := http.Get(s.URL() + "/readyz")
	require.NoError(t, err)
	defer answer.Body.Close()
	var body struct{ WaitingFor []process.Wait }
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&body))
	require.Equal(t, len(body.WaitingFor) == 0, answer.StatusCode == http.StatusOK)
	return body.WaitingFor
}

func reasonOf(waits []process.Wait, name string) string {
	for _, w := range waits {
		if w.Name == name {
			return w.Reason
		}
	}
	return ""
}
