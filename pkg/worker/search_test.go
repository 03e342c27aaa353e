package worker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestSearchesAreSeldomAndCheapWhenThereIsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		b := startEngine(t, s, map[string]Handler{"email": sleeper(0), "report": sleeper(0)})
		time.Sleep(time.Hour)
		due := s.callsOf("due")
		require.Greater(t, len(due), 500)
		for i := range due[1:] {
			require.GreaterOrEqual(t, due[i+1].at.Sub(due[i].at), 5*time.Second)
		}
		require.Empty(t, s.callsOf("front"))
		require.Empty(t, s.callsOf("claim"))
		require.NoError(t, b.stop())
	})
}

func TestNoSearchWhileSignalsComeOrNoSlotIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		b := startEngine(t, s, map[string]Handler{"email": sleeper(time.Hour)}, func(o *Options) { o.Slots = 20 })
		for range 15 {
			b.bus.signal(s.add("email", 1)...)
			time.Sleep(4 * time.Second)
		}
		require.Empty(t, s.callsOf("due"))
		b.bus.signal(s.add("email", 5)...)
		time.Sleep(time.Minute)
		require.Empty(t, s.callsOf("due"), "all slots are taken")
		require.NoError(t, b.stop())
	})
}

func TestSearchIsBoundedAndReachesEveryTypeInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		handlers := map[string]Handler{}
		for i := range 100 {
			handlers[fmt.Sprintf("type-%d", i)] = sleeper(0)
		}
		b := startEngine(t, s, handlers, func(o *Options) { o.Slots = 100 })
		for name := range handlers {
			s.add(name, 1, func(k *task.Task) { k.Priority = 9 })
			s.add(name, 1, func(k *task.Task) { k.Priority = 0 })
		}
		stop := time.Now().Add(6 * time.Second)
		for time.Now().Before(stop) {
			time.Sleep(time.Second)
		}
		reads := len(s.callsOf("front")) + len(s.callsOf("candidates"))
		require.LessOrEqual(t, reads, maxReads+10)
		time.Sleep(2 * time.Minute)
		for id := range s.tasks {
			require.Equal(t, task.Success, s.get(id).State, id)
		}
		require.NoError(t, b.stop())
	})
}
