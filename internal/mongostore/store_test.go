package mongostore

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	for uri, says := range map[string]string{
		"mongodb://127.0.0.1:1/?readPreference=secondaryPreferred": "readPreference secondaryPreferred",
		"http://127.0.0.1": "scheme must be",
		"":                 "scheme must be",
	} {
		_, err := Open(t.Context(), Options{URI: uri})
		require.ErrorContains(t, err, says)
	}
}

// A server that does not answer is an error within the caller's deadline, and leaves nothing behind (goleak).
func TestOpenWithoutAServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	uri := "mongodb://" + l.Addr().String() + "/?directConnection=true"
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = Open(ctx, Options{URI: uri})
	require.ErrorContains(t, err, "open database")
}

func TestFeatures(t *testing.T) {
	require.True(t, openStore(t).Features().ChangeStreams)
	require.True(t, openStore(t).Features().Transactions)
	require.NotEmpty(t, openStore(t).Features().Version)
}

func TestFeaturesOfAStandalone(t *testing.T) {
	m := stacktest.StartMongo(t, localstack.MongoOptions{Standalone: true})
	s, err := Open(t.Context(), Options{URI: m.URI(), Database: "standalone"})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close(context.Background())) }()
	require.False(t, s.Features().ChangeStreams)
	require.False(t, s.Features().Transactions)
	require.NoError(t, s.EnsureIndexes(t.Context()))
	finishOne(t, s, claimTasks(t, s, insertTasks(t, s, 1)...)[0], task.Succeeded)
}

// Claims and beats by the primary alone, by option; reports always by majority.
func TestWriteConcerns(t *testing.T) {
	for _, w1 := range []bool{false, true} {
		seen := &concernWatch{}
		s := openStore(t, func(o *Options) { o.ClaimW1, o.adjust = w1, seen.watch })
		tk := claimTasks(t, s, insertTasks(t, s, 1)...)[0]
		claim := any("majority")
		if w1 {
			claim = int64(1)
		}
		require.Equal(t, "majority", seen.of("insert"))
		require.Equal(t, claim, seen.of("update"))
		beat(t, s, owned(tk)...)
		require.Equal(t, claim, seen.of("update"))
		finishOne(t, s, tk, task.Succeeded)
		require.Equal(t, "majority", seen.of("update"))
	}
}

func TestIndexes(t *testing.T) {
	s := openStore(t)
	require.NoError(t, s.EnsureIndexes(t.Context()), "twice is like once")
	for _, want := range indexes {
		specs, err := s.hotDB.Collection(want.collection).Indexes().ListSpecifications(t.Context())
		require.NoError(t, err)
		found := false
		for _, spec := range specs {
			if spec.Name != want.name {
				continue
			}
			found = true
			var keys bson.D
			require.NoError(t, bson.Unmarshal(spec.KeysDocument, &keys))
			require.Len(t, keys, len(want.keys))
			for i := range keys {
				require.Equal(t, want.keys[i].Key, keys[i].Key)
			}
			require.Equal(t, want.ttl, spec.ExpireAfterSeconds != nil)
		}
		require.True(t, found, want.name)
	}
}

// A server that dies just after the first write to a collection made it may come back without it, or unable to use it.
func TestCollectionsStandFromTheStart(t *testing.T) {
	names, err := openStore(t).hotDB.ListCollectionNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{TasksCollection, ArchiveCollection, uniqueKeysCollection, servicesCollection, onceCollection, schedulesCollection,
		workersCollection, locksCollection, cursorsCollection, deadLettersCollection}, names)
}
