package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestExportPrintsTheArchive(t *testing.T) {
	uri, name := stacktest.Mongo(t).URI(), stacktest.Database(t)
	store, err := mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: name})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Disconnect(context.Background())) })
	ids := map[string]time.Time{"january": time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC), "february": time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC), "report": time.Date(2026, 1, 20, 0, 0, 0, 0, time.UTC), "live": {}}
	for id, at := range ids {
		kind := "email"
		if id == "report" {
			kind = "report"
		}
		_, err = store.Insert(t.Context(), []*task.Task{{ID: id, Type: kind, MaxAttempts: 3, MaxLosses: 3, Source: "api", SubmitHash: "v1:" + id, Payload: json.RawMessage(`{"n":1.50}`)}})
		require.NoError(t, err)
		if at.IsZero() {
			continue
		}
		_, _, err = store.Cancel(t.Context(), id, "test")
		require.NoError(t, err)
		_, err = client.Database(name).Collection(mongostore.TasksCollection).UpdateByID(t.Context(), id, bson.D{{Key: "$set", Value: bson.D{{Key: "finishedAt", Value: at}}}})
		require.NoError(t, err)
		_, err = store.Archive(t.Context(), []string{id})
		require.NoError(t, err)
	}
	export := func(args ...string) (got []string) {
		var out, errs bytes.Buffer
		require.Zero(t, run(t.Context(), append([]string{"export", "--mongo", uri, "--mongo-db", name}, args...), strings.NewReader(""), &out, &errs), errs.String())
		for line := range strings.Lines(out.String()) {
			var one events.Task
			require.NoError(t, json.Unmarshal([]byte(line), &one))
			require.Equal(t, []string{"cancelled", `{"n":1.50}`}, []string{one.State, string(one.Payload)})
			got = append(got, one.ID)
		}
		return got
	}
	require.ElementsMatch(t, []string{"january", "february", "report"}, export())
	require.ElementsMatch(t, []string{"january", "report"}, export("--since", "2026-01-01T00:00:00Z", "--until", "2026-02-01T00:00:00Z"))
	require.Equal(t, []string{"report"}, export("--type", "report"))
	require.Empty(t, export("--since", "1h"))
}
