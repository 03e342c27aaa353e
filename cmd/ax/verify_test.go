package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/audit"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/mongostore"
	"github.com/ax-scheduler/ax/internal/task"
)

func verify(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append([]string{"verify"}, args...), strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestVerifyExitCodes(t *testing.T) {
	uri, name := stacktest.Mongo(t).URI(), stacktest.Database(t)
	store, err := mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: name})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
	require.NoError(t, store.EnsureIndexes(t.Context()))
	_, err = store.Insert(t.Context(), []*task.Task{{ID: "t1", Type: "email", MaxAttempts: 3, MaxLosses: 3, Source: "api", SubmitHash: "v1:1"}})
	require.NoError(t, err)
	here := []string{"--mongo", uri, "--mongo-db", name}

	code, out, errs := verify(t, here...)
	require.Zero(t, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, "read 1 tasks, 0 events, 0 dead letters and 0 schedules\nnothing is wrong\n")

	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Disconnect(context.Background())) })
	_, err = client.Database(name).Collection("tasks").UpdateByID(t.Context(), "t1", bson.D{{Key: "$set", Value: bson.D{{Key: "failures", Value: 7}, {Key: "losses", Value: 7}}}})
	require.NoError(t, err)
	code, out, errs = verify(t, here...)
	require.Equal(t, exitFailed, code)
	require.Regexp(t, `^KIND +TASK +TYPE +SEQ +WHAT\nfailures +t1 +email +- +7 failures, .+\nlosses +t1 .+\n$`, out)
	require.Contains(t, errs, "ax: 2 violations\n")

	code, out, errs = verify(t, append(here, "--json", "--limit", "1")...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "there may be more")
	var v audit.Violation
	require.NoError(t, json.Unmarshal([]byte(out), &v))
	require.Equal(t, audit.Violation{Kind: audit.Failures, Task: "t1", Type: "email", Text: v.Text}, v)

	code, _, errs = verify(t, append(here, "--type", "report", "--since", "1h")...)
	require.Zero(t, code, errs)

	code, out, errs = verify(t, "--mongo", "mongodb://ann:s3cret@127.0.0.1:1/?directConnection=true")
	require.Equal(t, exitInvalid, code)
	require.Empty(t, out)
	require.Contains(t, errs, "could not check")
	require.NotContains(t, errs, "s3cret")
	code, _, errs = verify(t, append(here, "--events", "--nats", "nats://127.0.0.1:1")...)
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "--nats")
	code, _, errs = verify(t, append(here, "--timeout", "1ns")...)
	require.Equal(t, exitInvalid, code, errs)
	for _, bad := range [][]string{{"--since", "yesterday"}, {"--since", "-1h"}, {"--limit", "0"}, {"--late", "0s"}, {"--type", "A"}, {"--mongo", "x"}, {"one"}} {
		code, out, _ = verify(t, bad...)
		require.Equal(t, exitInvalid, code, bad)
		require.Empty(t, out)
	}
	code, help, _ := verify(t, "--help")
	require.Zero(t, code)
	require.Contains(t, help, "Exit codes")
}
