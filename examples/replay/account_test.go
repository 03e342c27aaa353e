package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/ledger"
)

// Every task that was begun counts once, wherever its first attempt was lost.
func TestEachTaskIsPickedUpOnce(t *testing.T) {
	runs := []ledger.Execution{
		{Record: ledger.Record{Task: "retried", Attempt: 2, Lane: "high", At: 900, Waited: 800}},
		{Record: ledger.Record{Task: "retried", Attempt: 1, Lane: "high", At: 130, Waited: 30}},
		{Record: ledger.Record{Task: "plain", Attempt: 1, Lane: "high", At: 120, Waited: 20}},
		{Record: ledger.Record{Task: "low", Attempt: 1, Lane: "low", At: 140, Waited: 40}},
		{Record: ledger.Record{Task: "claimed and killed", Attempt: 2, Lane: "high", At: 500, Waited: 400}},
		{Record: ledger.Record{Task: "claimed and killed", Attempt: 3, Lane: "high", At: 700, Waited: 600}},
	}
	byLane, later := waitsOf(runs)
	require.Equal(t, map[string][]time.Duration{"high": {20, 30}, "low": {40}}, byLane)
	require.Equal(t, []time.Duration{400}, later)
}
