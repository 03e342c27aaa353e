package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadJoinsStartsAndEndsOverFiles(t *testing.T) {
	dir := t.TempDir()
	a, err := Open(filepath.Join(dir, "a"), "wa")
	require.NoError(t, err)
	require.NoError(t, a.Write(Record{Kind: Started, Task: "t1", Execution: "c1:t1", At: 10}))
	require.NoError(t, a.Write(Record{Kind: Ended, Task: "t1", Execution: "c1:t1", At: 20, Outcome: "ok"}))
	require.NoError(t, a.Write(Record{Kind: Started, Task: "t2", Execution: "c2:t2", At: 30}))
	require.NoError(t, a.Close())
	b, err := Open(filepath.Join(dir, "b"), "wb")
	require.NoError(t, err)
	require.NoError(t, b.Write(Record{Kind: Started, Task: "t2", Execution: "c3:t2", At: 50}))
	require.NoError(t, b.Close())

	got, err := Read(map[string]int64{"wa": 40}, filepath.Join(dir, "a"), filepath.Join(dir, "b"))
	require.NoError(t, err)
	require.Len(t, got, 3)
	require.Equal(t, "ok", got[0].Result)
	require.Equal(t, Killed, got[1].Result)
	require.EqualValues(t, 40, got[1].End)
	require.Equal(t, OpenEnded, got[2].End)
	require.Empty(t, Overlaps(got), "the second worker took t2 only after the first had died")
}

// A stopped process writes nothing: what it ran lasted until the last time it was sure of, and so may be followed but not joined.
func TestAnExecutionLastsNoLongerThanItsLastFence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	w, err := Open(path, "w")
	require.NoError(t, err)
	for _, r := range []Record{
		{Kind: Fenced, Task: "t", Execution: "c1:t", At: 40},
		{Kind: Started, Task: "t", Execution: "c1:t", At: 10},
		{Kind: Fenced, Task: "t", Execution: "c1:t", At: 60},
		{Kind: Started, Task: "t", Execution: "c2:t", At: 70}, // by another worker, after the first one's time
		{Kind: Ended, Task: "t", Execution: "c1:t", At: 90, Outcome: "ok"},
		{Kind: Fenced, Task: "t", Execution: "c2:t", At: 100},
		{Kind: Ended, Task: "t", Execution: "c2:t", At: 80, Outcome: "ok"},
	} {
		require.NoError(t, w.Write(r))
	}
	require.NoError(t, w.Close())
	got, err := Read(nil, path)
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.EqualValues(t, 60, got[0].End)
	require.Equal(t, Stale, got[0].Result)
	require.EqualValues(t, 80, got[1].End, "a fence ahead ends nothing")
	require.True(t, got[0].Running(59), "its fence lay ahead")
	require.False(t, got[0].Running(60))
	require.False(t, got[1].Running(0), "it returned")
	require.Equal(t, "ok", got[1].Result)
	require.Empty(t, Overlaps(got))

	w, err = Open(path, "w")
	require.NoError(t, err)
	require.NoError(t, w.Write(Record{Kind: Fenced, Task: "t", Execution: "c1:t", At: 75})) // the first one's time was extended after all
	require.NoError(t, w.Close())
	got, err = Read(nil, path)
	require.NoError(t, err)
	require.Len(t, Overlaps(got), 1)
}

func TestUntilIsOnTheRecordsClock(t *testing.T) {
	require.InDelta(t, Now()+int64(time.Hour), Until(time.Now().Add(time.Hour)), float64(10*time.Second))
}

func TestOverlapsFindsAnExecutionInsideALongerOne(t *testing.T) {
	run := func(exec string, from, to int64) Execution {
		return Execution{Record: Record{Task: "t", Execution: exec, At: from}, End: to}
	}
	got := Overlaps([]Execution{run("b", 5, 8), run("a", 0, 100), run("c", 50, 60), run("d", 100, 120)})
	require.Len(t, got, 2)
	require.Equal(t, "b", got[0].Second.Execution)
	require.Equal(t, "c", got[1].Second.Execution)
}

func TestReadRefusesWhatIsNoRecordButForgivesATornLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	require.NoError(t, os.WriteFile(path, []byte(`{"kind":"start","execution":"x","at":1}`+"\n{\"ki"), 0o644))
	got, err := Read(nil, path)
	require.NoError(t, err)
	require.Len(t, got, 1)

	require.NoError(t, os.WriteFile(path, []byte("nonsense\n{}\n"), 0o644))
	_, err = Read(nil, path)
	require.ErrorContains(t, err, "line 1")
}

func TestNowRises(t *testing.T) {
	a := Now()
	require.GreaterOrEqual(t, Now(), a)
	require.Positive(t, a)
}
