package localstack_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(10 * time.Second))
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := client.Disconnect(context.Background()); err != nil {
			require.ErrorIs(t, err, mongo.ErrClientDisconnected)
		}
	})
	return client
}

func TestMongoTakesWritesAndTellsThemInAChangeStream(t *testing.T) {
	ctx := t.Context()
	m := stacktest.Mongo(t)
	coll := connect(t, m.URI()).Database(stacktest.Database(t)).Collection("c")
	stream, err := coll.Watch(ctx, mongo.Pipeline{})
	require.NoError(t, err)
	defer stream.Close(ctx)

	_, err = coll.InsertOne(ctx, bson.D{{Key: "_id", Value: "a"}})
	require.NoError(t, err)
	require.True(t, stream.Next(ctx), "%v", stream.Err())
	require.Equal(t, "insert", stream.Current.Lookup("operationType").StringValue())
	require.Contains(t, []string{localstack.StoreMongoDB, localstack.StoreSecantusDB}, m.Store())
}

func TestDatabaseIsDroppedAndNeverTheSame(t *testing.T) {
	m := stacktest.Mongo(t)
	var name string
	t.Run("user", func(t *testing.T) {
		name = stacktest.Database(t)
		require.NotEqual(t, name, stacktest.Database(t))
		_, err := connect(t, m.URI()).Database(name).Collection("c").InsertOne(t.Context(), bson.D{})
		require.NoError(t, err)
	})
	names, err := connect(t, m.URI()).ListDatabaseNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.NotContains(t, names, name)
}

func TestAcknowledgedWriteSurvivesKillAndRestart(t *testing.T) {
	ctx := t.Context()
	m := stacktest.StartMongo(t, localstack.MongoOptions{})
	uri, pid := m.URI(), m.PID()
	coll := connect(t, uri).Database("d").Collection("c")
	_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: "a"}})
	require.NoError(t, err)

	require.NoError(t, m.Kill())
	require.Zero(t, m.PID())
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "the process is gone")

	require.NoError(t, m.Restart(ctx))
	require.Equal(t, uri, m.URI(), "same port")
	require.NotEqual(t, pid, m.PID())
	require.NoError(t, connect(t, m.URI()).Database("d").Collection("c").FindOne(ctx, bson.D{{Key: "_id", Value: "a"}}).Err())
}

func TestStopDeletesATemporaryFolderAndKeepsOneThatWasGiven(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	m := stacktest.StartMongo(t, localstack.MongoOptions{})
	require.Len(t, dirsIn(t, os.TempDir()), 1)
	require.NoError(t, m.Stop())
	require.Empty(t, dirsIn(t, os.TempDir()))
	require.NoError(t, m.Stop(), "a second stop does nothing")
	require.Error(t, m.Restart(t.Context()), "stopped for good")

	dir := filepath.Join(t.TempDir(), "data")
	m = stacktest.StartMongo(t, localstack.MongoOptions{Dir: dir})
	client := connect(t, m.URI())
	_, err := client.Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "kept"}})
	require.NoError(t, err)
	// The server would wait for connected drivers to say goodbye.
	require.NoError(t, client.Disconnect(t.Context()))
	require.NoError(t, m.Stop())

	m = stacktest.StartMongo(t, localstack.MongoOptions{Dir: dir})
	require.NoError(t, connect(t, m.URI()).Database("d").Collection("c").FindOne(t.Context(), bson.D{{Key: "_id", Value: "kept"}}).Err())
}

func dirsIn(t *testing.T, path string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(path, "ax-stack-*"))
	require.NoError(t, err)
	return found
}

func TestStandaloneHasNoChangeStream(t *testing.T) {
	m := stacktest.StartMongo(t, localstack.MongoOptions{Standalone: true})
	var hello bson.M
	require.NoError(t, connect(t, m.URI()).Database("admin").RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello))
	require.NotContains(t, hello, "setName", "no replica set")
}

func TestFaketimeFileMovesTheServersClock(t *testing.T) {
	if libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1"); len(libs) == 0 {
		t.Skip("the system package faketime is not installed")
	}
	clock := filepath.Join(t.TempDir(), "clock")
	m := stacktest.StartMongo(t, localstack.MongoOptions{FaketimeFile: clock})
	coll := connect(t, m.URI()).Database("d").Collection("c")
	serverTime := func() time.Time {
		var got struct {
			At time.Time `bson:"at"`
		}
		_, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}},
			mongo.Pipeline{{{Key: "$set", Value: bson.D{{Key: "at", Value: "$$NOW"}}}}}, options.UpdateOne().SetUpsert(true))
		require.NoError(t, err)
		require.NoError(t, coll.FindOne(t.Context(), bson.D{}).Decode(&got))
		return got.At
	}
	require.WithinDuration(t, time.Now(), serverTime(), time.Minute)
	require.NoError(t, os.WriteFile(clock, []byte("+3600\n"), 0o600))
	require.WithinDuration(t, time.Now().Add(time.Hour), serverTime(), time.Minute)
	require.NoError(t, os.WriteFile(clock, []byte("-3600\n"), 0o600))
	require.WithinDuration(t, time.Now().Add(-time.Hour), serverTime(), time.Minute)
}

func TestExternalDatabaseIsUsedAsItIsAndLeftAlone(t *testing.T) {
	own := stacktest.Mongo(t)
	t.Setenv("AX_MONGO_URI", own.URI())
	m, err := localstack.StartMongo(t.Context(), localstack.MongoOptions{})
	require.NoError(t, err)
	require.True(t, m.External())
	require.Equal(t, own.URI(), m.URI())
	require.Equal(t, own.Store(), m.Store(), "the server itself is asked")
	require.Zero(t, m.PID())
	require.ErrorIs(t, m.Kill(), localstack.ErrExternal)
	require.ErrorIs(t, m.Restart(t.Context()), localstack.ErrExternal)
	require.NoError(t, m.Stop())
	require.NoError(t, connect(t, own.URI()).Ping(t.Context(), nil), "still there after Stop")

	_, err = localstack.StartMongo(t.Context(), localstack.MongoOptions{Standalone: true})
	require.ErrorIs(t, err, localstack.ErrExternal)
	_, err = localstack.StartMongo(t.Context(), localstack.MongoOptions{FaketimeFile: "clock"})
	require.ErrorIs(t, err, localstack.ErrExternal)
	_, err = localstack.StartMongo(t.Context(), localstack.MongoOptions{ExtraArgs: []string{"--quiet"}})
	require.ErrorIs(t, err, localstack.ErrExternal)
}

func TestChoiceIsToldInOneLineWithoutThePassword(t *testing.T) {
	t.Setenv("AX_MONGO_URI", "mongodb://ax:s3cret@db.example.com/")
	var log bytes.Buffer
	_, err := localstack.StartMongo(t.Context(), localstack.MongoOptions{Log: &log})
	require.NoError(t, err)
	require.Equal(t, "database: mongodb://ax:xxxxx@db.example.com/ (AX_MONGO_URI is set)\n", log.String())
}
