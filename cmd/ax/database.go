package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ax-scheduler/ax/internal/mongostore"
)

const defaultMongo = "mongodb://127.0.0.1:27017"

// database is where commands read that do without a submitter.
type database struct{ mongo, name string }

func (d *database) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.mongo, "mongo", cmp.Or(os.Getenv("AX_MONGO_URI"), defaultMongo), "connection string of the database (AX_MONGO_URI)")
	cmd.Flags().Lookup("mongo").DefValue = defaultMongo // the variable may hold a password
	cmd.Flags().StringVar(&d.name, "mongo-db", cmp.Or(os.Getenv("AX_MONGO_DB"), mongostore.DefaultDatabase), "name of the database (AX_MONGO_DB)")
}

// check refuses what can never be connected to.
func (d *database) check() error {
	if err := mongostore.CheckURI(d.mongo); err != nil {
		return usageError{fmt.Errorf("--mongo: %w", err)}
	}
	if err := mongostore.CheckDatabase(d.name); err != nil {
		return usageError{fmt.Errorf("--mongo-db (AX_MONGO_DB): %w", err)}
	}
	return nil
}

func (d *database) open(ctx context.Context, app string) (*mongostore.Store, error) {
	store, err := mongostore.Open(ctx, mongostore.Options{URI: d.mongo, Database: d.name, AppName: app})
	if err != nil {
		return nil, fmt.Errorf("%w; --mongo or AX_MONGO_URI names the database", err)
	}
	return store, nil
}
