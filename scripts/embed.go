// Package scripts holds the shell scripts that Go code runs too, so that each is written once.
package scripts

import _ "embed"

// LocalDB is scripts/local-db: it builds or fetches the local database into the cache folder.
//
//go:embed local-db
var LocalDB string
