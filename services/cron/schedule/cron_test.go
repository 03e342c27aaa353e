package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

// ledger is a store in memory with a clock that can be stepped. It notes every task id ever stored, with its first time.
type ledger struct {
	mu        sync.Mutex
	schedules map[string]task.Schedule
	tasks     map[string]time.Time // by id: the database's time of the insert
	repeats   int
	step      time.Duration
	held      int                       // the most schedules handed out at once
	failing   error                     // answers everything
	onInsert  func(tasks []*task.Task)  // after it has happened, before the answer
	onAdvance func([]task.Advance) bool // false: the call is lost
}

func newLedger() *ledger {
	time.Sleep(200 * time.Millisecond) // not on a slot
	return &ledger{schedules: map[string]task.Schedule{}, tasks: map[string]time.Time{}}
}

func (l *ledger) now() time.Time { return time.Now().Add(l.step) }

func (l *ledger) Now() (time.Time, time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now().Add(3 * time.Millisecond), 5 * time.Millisecond, l.failing
}

func (l *ledger) jump(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step += d
}

func (l *ledger) list(limit int, keep func(task.Schedule) bool, order func(a, b task.Schedule) int) ([]task.Schedule, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []task.Schedule
	for _, s := range l.schedules {
		if keep(s) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, order)
	out = out[:min(limit, len(out))]
	l.held = max(l.held, len(out))
	return out, l.failing
}

func (l *ledger) DueSchedules(_ context.Context, until time.Time, limit int) ([]task.Schedule, error) {
	return l.list(limit, func(s task.Schedule) bool { return !s.NextAt.IsZero() && !s.NextAt.After(until) },
		func(a, b task.Schedule) int { return a.NextAt.Compare(b.NextAt) })
}

func (l *ledger) Schedules(_ context.Context, after string, limit int) ([]task.Schedule, error) {
	return l.list(limit, func(s task.Schedule) bool { return s.Name > after },
		func(a, b task.Schedule) int { return strings.Compare(a.Name, b.Name) })
}

func (l *ledger) Advance(_ context.Context, moves []task.Advance) (moved int, err error) {
	if l.onAdvance != nil && !l.onAdvance(moves) {
		return 0, errors.New("connection lost")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range moves {
		s, ok := l.schedules[m.Name]
		if !ok || s.Revision != m.Revision || !s.NextAt.Equal(m.From) {
			continue
		}
		s.NextAt, s.Broken = m.To, m.Broken
		if !m.LastAt.IsZero() {
			s.LastAt = m.LastAt
		}
		l.schedules[m.Name] = s
		moved++
	}
	return moved, l.failing
}

func (l *ledger) Insert(_ context.Context, tasks []*task.Task) ([]task.InsertStatus, error) {
	l.mu.Lock()
	if l.failing != nil {
		defer l.mu.Unlock()
		return nil, l.failing
	}
	statuses := make([]task.InsertStatus, len(tasks))
	for i, t := range tasks {
		statuses[i] = task.Duplicate
		if _, there := l.tasks[t.ID]; !there {
			l.tasks[t.ID] = l.now()
			statuses[i] = task.Inserted
		} else {
			l.repeats++
		}
	}
	l.mu.Unlock()
	if l.onInsert != nil {
		l.onInsert(tasks)
	}
	return statuses, nil
}

// add stores a schedule as its door does: the first slot after now is its position.
func (l *ledger) add(t *testing.T, name, cron string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	template := events.SubmitRequest{Type: "email", Submit: events.Submit{Payload: []byte(`{"to":"a@example.com"}`)}}
	s, err := intake.BuildSchedule(&events.Schedule{Name: name, Cron: cron, Task: template}, l.now())
	require.NoError(t, err)
	s.Revision = l.schedules[name].Revision + 1
	l.schedules[name] = *s
}

// slots returns the slots fired of a schedule, in order.
func (l *ledger) slots(t *testing.T, name string) []time.Time {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []time.Time
	for id, stored := range l.tasks {
		if text, ok := strings.CutPrefix(id, "cron:"+name+":"); ok {
			slot, err := time.Parse(time.RFC3339, text)
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(text, "Z"), text)
			require.False(t, stored.Before(slot), "%s fired early, at %s", id, stored)
			out = append(out, slot)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

func (l *ledger) schedule(name string) task.Schedule {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.schedules[name]
}

// lead runs a cron over the ledger until the returned function is called or the test ends.
func lead(t *testing.T, l *ledger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c := New(Config{}, l, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	var running sync.WaitGroup
	running.Go(func() { require.NoError(t, c.Lead(ctx, task.Lease{})) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func requireEach(t *testing.T, slots []time.Time, every time.Duration) {
	t.Helper()
	for i := 1; i < len(slots); i++ {
		require.Equal(t, every, slots[i].Sub(slots[i-1]), "after %s", slots[i-1])
	}
}

func TestEverySlotFiresOnceAndOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.add(t, "second", "@every 1s")
		l.add(t, "seconds", "*/5 * * * * *")
		l.add(t, "minute", "* * * * *")
		stop := lead(t, l)
		time.Sleep(10 * time.Minute)
		stop()
		for name, every := range map[string]time.Duration{"second": time.Second, "seconds": 5 * time.Second, "minute": time.Minute} {
			slots := l.slots(t, name)
			require.Len(t, slots, int(10*time.Minute/every))
			requireEach(t, slots, every)
			for _, slot := range slots {
				require.Less(t, l.tasks[task.SlotID(name, slot)].Sub(slot), 50*time.Millisecond, "a slot is not found by polling alone")
			}
		}
		require.Zero(t, l.repeats)
	})
}

func TestTwoLeadersFireEachSlotOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.add(t, "second", "@every 1s")
		for range 25 {
			l.add(t, fmt.Sprintf("minute%d", len(l.schedules)), "* * * * *")
		}
		stopA, stopB := lead(t, l), lead(t, l) // the lock was believed by both
		time.Sleep(5 * time.Minute)
		stopA()
		time.Sleep(5 * time.Minute)
		stopB()
		requireEach(t, l.slots(t, "second"), time.Second)
		require.Equal(t, 600, len(l.slots(t, "second")))
		for name := range l.schedules {
			if name != "second" {
				require.Equal(t, 10, len(l.slots(t, name)), name)
			}
		}
	})
}

func TestCrashBetweenStoringAndMovingOnRepeatsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.add(t, "ten", "@every 10s")
		lost := 0
		l.onAdvance = func([]task.Advance) bool { lost++; return lost%2 == 0 } // every other answer never comes
		stop := lead(t, l)
		time.Sleep(2*time.Minute + 2*time.Second)
		stop()
		require.Equal(t, 12, len(l.slots(t, "ten")))
		require.NotZero(t, l.repeats)
	})
}

func TestAfterDowntimeOnlyTheNewestMissedSlotFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		for i := range 50 {
			l.add(t, fmt.Sprintf("five%d", i), "@every 5s")
		}
		l.add(t, "daily", "0 3 * * *")
		l.add(t, "hour", "0 * * * *")
		time.Sleep(time.Hour + 2*time.Second)
		before := l.now()
		stop := lead(t, l)
		time.Sleep(time.Second)
		for i := range 50 {
			slots := l.slots(t, fmt.Sprintf("five%d", i))
			require.Len(t, slots, 1)
			require.Equal(t, before.Truncate(5*time.Second), slots[0].In(before.Location()), "the slot's own time, not the time it fired")
		}
		require.Equal(t, 1, len(l.slots(t, "hour")))
		require.Empty(t, l.slots(t, "daily"))
		time.Sleep(time.Minute)
		stop()
		require.Len(t, l.slots(t, "five7"), 1+12)
	})
}

func TestClockOfTheDatabaseSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.add(t, "five", "@every 5s")
		l.add(t, "hour", "0 * * * *")
		stop := lead(t, l)
		time.Sleep(time.Minute)
		l.jump(time.Hour)
		time.Sleep(time.Minute)
		require.Equal(t, 12+1+12, len(l.slots(t, "five")), "an hour forward is one slot, not 720")
		require.Equal(t, 1, len(l.slots(t, "hour")))
		l.jump(-time.Hour)
		time.Sleep(time.Minute)
		require.InDelta(t, 12+1+12+12, len(l.slots(t, "five")), 1, "an hour back does not silence it for an hour")
		time.Sleep(2 * time.Hour)
		require.Equal(t, 2, len(l.slots(t, "hour")), "the slot that fired in the false hour does not fire again when its time comes")
		stop()
	})
}

func TestBrokenSchedulesAreDisabledAndTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.add(t, "good", "@every 1s")
		for i, cron := range []string{"TZ=0 * * * * *", "", "@every 0s", "*/0 * * * *", "60 * * * *", "@", strings.Repeat("1,", 500_000), "@every 1ns"} {
			name := fmt.Sprintf("bad%d", i)
			l.add(t, name, "@every 1s")
			s := l.schedules[name]
			s.Cron = cron
			l.schedules[name] = s
		}
		for name, spoil := range map[string]func(*task.Schedule){
			"badzone":     func(s *task.Schedule) { s.Zone = "../../etc/passwd" },
			"badtype":     func(s *task.Schedule) { s.TaskType = "" },
			"badtemplate": func(s *task.Schedule) { s.Template = []byte(`{"maxAttempt":3}`) },
		} {
			l.add(t, name, "* * * * * *")
			s := l.schedules[name]
			spoil(&s)
			l.schedules[name] = s
		}
		stop := lead(t, l)
		time.Sleep(time.Minute)
		stop()
		require.Equal(t, 60, len(l.slots(t, "good")))
		for name, s := range l.schedules {
			if name != "good" {
				require.NotEmpty(t, s.Broken, name)
				require.Zero(t, s.NextAt, name)
				require.Empty(t, l.slots(t, name), name)
			}
		}
	})
}

func TestAnEditDuringTheFiringIsNotOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.add(t, "entry", "@every 10s")
		edited := false
		l.onInsert = func([]*task.Task) {
			if !edited {
				edited = true
				l.add(t, "entry", "@every 1h")
			}
		}
		stop := lead(t, l)
		time.Sleep(time.Minute)
		stop()
		require.Equal(t, 1, len(l.slots(t, "entry")))
		require.Greater(t, l.schedule("entry").NextAt.Sub(l.now()), 50*time.Minute)
	})
}

func TestManySchedulesAreFiredInBatchesOfBoundedSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		for i := range 10_000 {
			cron := "0 0 * * *"
			if i%10 == 0 {
				cron = "30 * * * * *" // 1,000 fall due in the same second
			}
			l.add(t, fmt.Sprintf("s%05d", i), cron)
		}
		var batches []int
		l.onInsert = func(tasks []*task.Task) { batches = append(batches, len(tasks)) }
		stop := lead(t, l)
		time.Sleep(2 * time.Minute)
		stop()
		require.Equal(t, []int{500, 500, 500, 500}, batches)
		require.LessOrEqual(t, l.held, 500)
		for _, stored := range l.tasks {
			require.Less(t, stored.Sub(stored.Truncate(time.Minute)), 31*time.Second)
		}
	})
}

func TestADatabaseThatIsAwayIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.add(t, "ten", "@every 10s")
		stop := lead(t, l)
		time.Sleep(30 * time.Second)
		l.mu.Lock()
		l.failing = errors.New("no primary")
		l.mu.Unlock()
		time.Sleep(time.Minute)
		l.mu.Lock()
		l.failing = nil
		l.mu.Unlock()
		time.Sleep(30 * time.Second)
		stop()
		require.Len(t, l.slots(t, "ten"), 3+1+3, "of the six slots meanwhile the newest fires")
	})
}
