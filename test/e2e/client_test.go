package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// driver is the database as a program of the user reaches it, with a client of its own.
func (w *world) driver() *mongo.Database {
	w.t.Helper()
	if w.db == nil {
		mc, err := mongo.Connect(options.Client().ApplyURI(w.mongoURI))
		require.NoError(w.t, err)
		w.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			require.NoError(w.t, mc.Disconnect(ctx))
		})
		w.db = mc.Database(w.database)
	}
	return w.db
}

// transact runs do in a transaction of the user's, as the driver's documentation shows it.
func (w *world) transact(t *testing.T, do func(ctx context.Context, db *mongo.Database) error) error {
	t.Helper()
	db := w.driver()
	session, err := db.Client().StartSession()
	require.NoError(t, err)
	defer session.EndSession(context.WithoutCancel(t.Context()))
	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) { return nil, do(ctx, db) })
	return err
}
