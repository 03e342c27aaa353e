package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestTheSliceIsReadWhole(t *testing.T) {
	tr, err := loadTrace("data")
	require.NoError(t, err)
	require.Len(t, tr.functions, 100)
	require.Equal(t, 30, tr.minutes)
	require.Equal(t, 20_528, tr.total())
	seen := map[string]bool{}
	for _, f := range tr.functions {
		require.NoError(t, task.ValidateType(f.Type))
		require.False(t, seen[f.Type], "two functions of one type %s", f.Type)
		seen[f.Type] = true
	}
}

func TestArrivalsKeepTheRecordedMinutes(t *testing.T) {
	tr, err := loadTrace("data")
	require.NoError(t, err)
	got := tr.arrivals(time.Second, 1, 7)
	require.Len(t, got, tr.total())
	perMin := make([]int, tr.minutes)
	for i, a := range got {
		perMin[int(a.At/time.Second)]++
		require.True(t, i == 0 || got[i-1].At <= a.At)
	}
	for m, n := range perMin {
		want := 0
		for _, f := range tr.functions {
			want += f.PerMin[m]
		}
		require.Equal(t, want, n, "minute %d", m)
	}
	require.Equal(t, got, tr.arrivals(time.Second, 1, 7), "the seed decides")
	require.InDelta(t, 0.1*float64(tr.total()), float64(len(tr.arrivals(time.Second, 0.1, 7))), 300)
}

func TestABadTraceIsRefusedWithItsPlace(t *testing.T) {
	dir := t.TempDir()
	_, err := loadTrace(dir)
	require.ErrorContains(t, err, "durations.csv")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "durations.csv"), []byte("HashFunction,Average\nabcdefgh12,5\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "invocations.csv"), []byte("HashFunction,Trigger,480\nabcdefgh12,http,-3\n"), 0o644))
	_, err = loadTrace(dir)
	require.ErrorContains(t, err, "line 2")
	require.ErrorContains(t, err, "480")
}
