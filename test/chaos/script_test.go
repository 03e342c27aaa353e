package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func text(s script) string {
	var out bytes.Buffer
	s.print(&out)
	return out.String()
}

func TestTheScriptIsAFunctionOfTheSeed(t *testing.T) {
	require.Equal(t, text(newScript(7, time.Minute)), text(newScript(7, time.Minute)))
	require.NotEqual(t, text(newScript(7, time.Minute)), text(newScript(8, time.Minute)))
	require.Equal(t, newPlan(7, 3), newPlan(7, 3))
	differ := 0
	for n := range 50 {
		if a, b := newPlan(7, n), newPlan(8, n); a.door != b.door || a.cancel != b.cancel {
			differ++
		}
	}
	require.Positive(t, differ)
}

// One fault at a time on each track, all over before the script is, and a pause outlasts a lease and a leader's lock.
func TestTheScriptKeepsItsBounds(t *testing.T) {
	for seed := range uint64(20) {
		s := newScript(seed, 3*time.Minute)
		for _, track := range trackNames {
			require.NotEmpty(t, s.tracks[track])
			free := time.Duration(0)
			for _, f := range s.tracks[track] {
				require.Greater(t, f.at, free)
				free = f.at + f.lasts
				if f.kind == pause {
					require.Greater(t, f.lasts, lease)
					require.Greater(t, f.lasts, lockTTL)
				}
			}
			require.LessOrEqual(t, free, s.lasts)
		}
	}
}

// A run that is long enough meets every fault, whatever the seed.
func TestALongScriptHasEveryFault(t *testing.T) {
	s := newScript(1, 10*time.Minute)
	for _, track := range trackNames {
		met := map[string]bool{}
		for _, f := range s.tracks[track] {
			met[string(f.kind)+f.target] = true
		}
		for _, f := range decks[track]() {
			require.True(t, met[string(f.kind)+f.target], "%v", f)
		}
	}
	off := map[int]int{}
	for _, by := range s.clocks {
		off[by]++
	}
	require.Len(t, off, 3, "ahead, behind and right")
}

func TestTheSelectionHasEveryKindOfFault(t *testing.T) {
	met := map[kind]bool{}
	for _, seed := range selected {
		for _, track := range newScript(seed, selectionLasts).tracks {
			for _, f := range track {
				met[f.kind] = true
			}
		}
	}
	for _, deck := range decks {
		for _, f := range deck() {
			require.True(t, met[f.kind], "%v", f)
		}
	}
}
