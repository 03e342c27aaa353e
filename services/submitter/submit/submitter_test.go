package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestALoneSubmissionDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		began := time.Now()
		seq := b.stream.publish(`{}`)
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(seq))
		require.Zero(t, time.Since(began))
		require.Equal(t, []int{1}, b.store.batches)
		b.stop()
	})
}

func TestAStopInOrderIsNoCauseForAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		seq := b.stream.publish(`{}`)
		synctest.Wait()
		b.stop()
		require.True(t, b.stream.ackedOnce(seq))
		require.Empty(t, b.warned.String())
	})
}

func TestBatchesGatherWhileInsertsAreOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Batch: 100})
		b.store.before = func(ctx context.Context, _ []*task.Task) error {
			time.Sleep(time.Second)
			return nil
		}
		for range 250 {
			b.stream.publish(`{}`)
			synctest.Wait()
		}
		b.store.set(func() { require.Equal(t, []int{1, 1}, b.store.batches, "two inserts, and the rest gathers") })
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, b.store.stored, 250)
		require.LessOrEqual(t, len(b.store.batches), 7, "%v", b.store.batches)
		require.LessOrEqual(t, slices.Max(b.store.batches), 100)
		require.Equal(t, 2, b.store.most)
		acked, naked := b.stream.counts()
		require.Equal(t, 250, acked)
		require.Zero(t, naked)
		require.Zero(t, b.held.count())
		b.stop()
	})
}

func TestSmallBatchesKeepApart(t *testing.T) {
	const takes = 4 * time.Millisecond
	steady := func(t *testing.T, every time.Duration) (batches int, slowest time.Duration) {
		b := start(t, Config{})
		b.store.before = func(context.Context, []*task.Task) error {
			time.Sleep(takes)
			return nil
		}
		for range 200 { // of the first ones the average is not known yet
			began := time.Now()
			seq := b.stream.publish(`{}`)
			time.Sleep(every)
			if synctest.Wait(); b.stream.ackedOnce(seq) {
				slowest = max(slowest, time.Since(began))
			}
		}
		b.stop()
		return len(b.store.batches), slowest
	}
	synctest.Test(t, func(t *testing.T) {
		batches, _ := steady(t, time.Millisecond)
		require.Less(t, batches, 40, "a millisecond apart: about ten in a batch, not two")
	})
	synctest.Test(t, func(t *testing.T) {
		batches, slowest := steady(t, takes+time.Microsecond)
		require.Equal(t, 200, batches, "each is alone")
		require.Less(t, slowest, takes+time.Millisecond)
	})
}

func TestAnOutageAcksNothingAndFetchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Batch: 10})
		b.store.set(func() { b.store.down = true })
		for range 100 {
			b.stream.publish(`{}`)
		}
		time.Sleep(time.Minute) // the first batch finds out
		synctest.Wait()
		require.Error(t, b.Check(t.Context()))
		acked, naked := b.stream.counts()
		require.Zero(t, acked)
		require.Zero(t, naked)
		fetches := b.stream.fetches
		require.LessOrEqual(t, b.held.count(), 40, "what is in hand is bounded")

		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, fetches, b.stream.fetches, "submissions are safer in the stream")
		require.NotZero(t, b.stream.renewals(1), "what is in hand is not delivered a second time")

		b.store.set(func() { b.store.down = false })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.NoError(t, b.Check(t.Context()))
		acked, naked = b.stream.counts()
		require.Equal(t, 100, acked)
		require.Zero(t, naked)
		require.Len(t, b.store.stored, 100)
		b.stop()
	})
}

func TestAnInsertThatHangsKeepsItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{AckWait: 30 * time.Second})
		hang := true
		b.store.before = func(ctx context.Context, _ []*task.Task) error {
			if !hang {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		seq := b.stream.publish(`{}`)
		for range 12 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		require.GreaterOrEqual(t, b.stream.renewals(seq), 8, "within each third of 30 s")
		require.False(t, b.stream.ackedOnce(seq))
		b.store.set(func() { hang = false })
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(seq))
		b.stop()
	})
}

func TestATaskThatTheDatabaseDoesNotTakeHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Batch: 50, Aside: 30 * time.Second})
		b.store.poison = "poison"
		var good []uint64
		for i := range 20 {
			good = append(good, b.stream.publish(fmt.Sprintf(`{"id":"good-%d"}`, i)))
		}
		bad := b.stream.publish(`{"id":"poison"}`)
		for i := range 20 {
			good = append(good, b.stream.publish(fmt.Sprintf(`{"id":"more-%d"}`, i)))
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(good...))
		require.Equal(t, []time.Duration{30 * time.Second}, b.stream.naked[bad])
		require.NoError(t, b.Check(t.Context()))
		b.stop()
	})
}

// Nothing else is there to show that the database works, and both inserters have nothing but bad tasks in hand.
func TestBadTasksAloneHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		b.store.set(func() { b.store.poison = "poison" })
		b.stream.publish(`{"id":"poison"}`)
		synctest.Wait()
		b.stream.publish(`{"id":"poison"}`)
		time.Sleep(time.Minute)
		require.Error(t, b.Check(t.Context()), "as far as anybody can tell")
		good := b.stream.publish(`{}`)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(good))
		require.NoError(t, b.Check(t.Context()))
		_, naked := b.stream.counts()
		require.Equal(t, 2, naked)
		b.stop()
	})
}

func TestPoisonIsBuriedOnceAndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		reply := events.Header{events.HeaderReplyTo: {"answers.here"}}
		var all []uint64
		for i := range 30 {
			body := fmt.Sprintf(`{"id":"t%d"}`, i)
			if i == 13 {
				body = `{"id":"t13","priority":10}`
			}
			all = append(all, b.stream.publishOn("ax.submit.email", body, reply))
		}
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(all...))
		require.Len(t, b.store.stored, 29)
		require.Len(t, b.bus.dead, 1)
		require.Len(t, b.bus.answers, 30)

		var dead events.DeadSubmit
		require.NoError(t, json.Unmarshal(b.bus.dead[0].Data, &dead))
		require.Equal(t, events.DeadSubmit{Subject: "ax.submit.email", Sequence: 14, At: "2026-02-25T06:13:20.000Z",
			Error: *events.Invalid("priority", "10", "a whole number from 0 (most urgent) to 9"), Body: []byte(`{"id":"t13","priority":10}`)}, withoutMessage(dead, "priority", "10"))
		require.Equal(t, events.SubjectDeadSubmit, b.bus.dead[0].Subject)
		require.NotEmpty(t, b.bus.dead[0].ID)
		for _, a := range b.bus.answers {
			require.Equal(t, a.ID != "t13", a.Accepted, a.ID)
			require.Equal(t, a.ID == "t13", a.Error != nil, a.ID)
		}
		b.stop()
	})
}

// withoutMessage puts the plain sentence in place of the one that quotes.
func withoutMessage(d events.DeadSubmit, field, value string) events.DeadSubmit {
	d.Error.Message = events.Invalid(field, value, d.Error.Allowed).Message
	return d
}

func TestWhatCannotBeBuriedIsNotAcked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Aside: 30 * time.Second})
		b.bus.refuse = func(events.Msg) error { return events.ErrFull }
		bad := b.stream.publish(`nonsense`)
		good := b.stream.publish(`{}`)
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(good))
		require.False(t, b.stream.ackedOnce(bad))
		require.Equal(t, []time.Duration{30 * time.Second}, b.stream.naked[bad])
		b.stop()
	})
}

func TestLargeBodiesAreBuriedCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		b.bus.refuse = func(m events.Msg) error {
			if len(m.Data) > 500<<10 {
				return fmt.Errorf("publish: %w", events.ErrTooLarge)
			}
			return nil
		}
		first := b.stream.publish(`{"payload":"` + strings.Repeat("x", 900<<10) + `"}`)
		b.stream.publish(`{"payload":"` + strings.Repeat("x", 600<<10) + `"}`)
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(first, first+1))
		require.Len(t, b.bus.dead, 2)
		for i, size := range []int{900<<10 + 14, 600<<10 + 14} {
			var dead events.DeadSubmit
			require.NoError(t, json.Unmarshal(b.bus.dead[i].Data, &dead))
			require.Equal(t, size, dead.Size)
			require.Empty(t, dead.Body, "the server takes less than is usual")
			require.Equal(t, events.CodeTooLarge, dead.Error.Code)
		}
		b.bus.mu.Lock()
		b.bus.refuse = nil
		b.bus.mu.Unlock()
		b.stream.publish(`{"payload":"` + strings.Repeat("x", 900<<10) + `"}`)
		synctest.Wait()
		var dead events.DeadSubmit
		require.NoError(t, json.Unmarshal(b.bus.dead[2].Data, &dead))
		require.Len(t, dead.Body, 700<<10)
		require.Less(t, len(b.bus.dead[2].Data), 1<<20)
		b.stop()
	})
}

func TestAFloodOfBadSubmissionsDoesNotHoldUpGoodOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Batch: 10})
		b.bus.refuse = func(events.Msg) error {
			time.Sleep(time.Minute) // AX_DEAD does not answer
			return events.ErrOpen
		}
		for range 500 {
			b.stream.publish(`nonsense`)
		}
		for range 100 {
			b.stream.publish(strings.Repeat("x", 1<<20))
		}
		good := b.stream.publish(`{}`)
		synctest.Wait()
		require.True(t, b.stream.ackedOnce(good))
		require.LessOrEqual(t, b.held.count(), 30)
		require.LessOrEqual(t, b.deadBytes.Load(), int64(maxDeadBytes))
		time.Sleep(time.Hour)
		require.Zero(t, b.deadBytes.Load())
		b.stop()
	})
}

func TestRefusedSubjectsAndHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		subject string
		header  events.Header
		code    string
		field   string
	}{
		"two tokens":    {"ax.submit.a.b", nil, events.CodeInvalid, "type"},
		"star":          {"ax.submit.*", nil, events.CodeInvalid, "type"},
		"arrow":         {"ax.submit.>", nil, events.CodeInvalid, "type"},
		"capital":       {"ax.submit.Email", nil, events.CodeInvalid, "type"},
		"too long":      {"ax.submit." + strings.Repeat("x", 65), nil, events.CodeInvalid, "type"},
		"workflow":      {"ax.workflow.submit", nil, events.CodeUnsupported, "subject"},
		"reply to ax":   {"ax.submit.email", events.Header{events.HeaderReplyTo: {"ax.submit.email"}}, events.CodeInvalid, "Ax-Reply-To"},
		"reply to NATS": {"ax.submit.email", events.Header{events.HeaderReplyTo: {"$JS.API.STREAM.DELETE.AX_WORK"}}, events.CodeInvalid, "Ax-Reply-To"},
		"reply to all":  {"ax.submit.email", events.Header{events.HeaderReplyTo: {">"}}, events.CodeInvalid, "Ax-Reply-To"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, Config{})
				seq := b.stream.publishOn(c.subject, `{}`, c.header)
				synctest.Wait()
				require.True(t, b.stream.ackedOnce(seq))
				require.Empty(t, b.store.stored)
				require.Empty(t, b.bus.answers)
				require.Len(t, b.bus.dead, 1)
				var dead events.DeadSubmit
				require.NoError(t, json.Unmarshal(b.bus.dead[0].Data, &dead))
				require.Equal(t, c.code, dead.Error.Code)
				require.Equal(t, c.field, dead.Error.Field)
				b.stop()
			})
		})
	}
}

func TestConflictsAndRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		reply := events.Header{events.HeaderReplyTo: {"answers"}}
		for _, body := range []string{`{"id":"a","payload":1}`, `{"payload":1,"id":"a"}`, `{"id":"a","payload":2}`} {
			b.stream.publishOn("ax.submit.email", body, reply)
			synctest.Wait()
		}
		b.stream.publishOn("ax.submit.sms", `{"id":"a","payload":1}`, reply)
		synctest.Wait()
		require.Len(t, b.store.stored, 1)
		require.Len(t, b.bus.dead, 2)
		require.Equal(t, events.Answer{ID: "a", Accepted: true}, b.bus.answers[0])
		require.Equal(t, events.Answer{ID: "a", Accepted: true, Duplicate: true}, b.bus.answers[1])
		require.Equal(t, events.CodeIDConflict, b.bus.answers[2].Error.Code)
		require.Equal(t, events.CodeIDConflict, b.bus.answers[3].Error.Code, "another type is another submission")
		require.True(t, b.stream.ackedOnce(1, 2, 3, 4))
		b.stop()
	})
}

func TestStoppingKeepsWhatIsOnItsWayAndGivesBackTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Batch: 10, Grace: 5 * time.Second})
		b.store.before = func(ctx context.Context, _ []*task.Task) error {
			time.Sleep(2 * time.Second)
			return ctx.Err()
		}
		for range 50 {
			b.stream.publish(`{}`)
		}
		time.Sleep(time.Second)
		began := time.Now()
		b.stop()
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		acked, naked := b.stream.counts()
		require.Equal(t, len(b.store.stored), acked, "what was stored was acknowledged")
		require.NotZero(t, acked)
		require.NotZero(t, naked)
		require.Zero(t, b.held.count())
	})
}

func TestStoppingEndsInTimeWhenTheDatabaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Grace: 5 * time.Second})
		b.store.before = func(ctx context.Context, _ []*task.Task) error {
			<-ctx.Done()
			return ctx.Err()
		}
		seq := b.stream.publish(`{}`)
		synctest.Wait()
		began := time.Now()
		b.stop()
		require.LessOrEqual(t, time.Since(began), 5*time.Second+closing)
		require.Equal(t, []time.Duration{leaving}, b.stream.naked[seq])
	})
}

func TestRequestsFailAtOnceInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		ask := func() error {
			_, errs := b.storeAll(t.Context(), []*task.Task{{ID: "x"}})
			return errs[0]
		}
		require.NoError(t, ask())
		b.store.set(func() { b.store.down = true })
		began := time.Now()
		require.ErrorIs(t, ask(), errDown)
		require.ErrorIs(t, ask(), errDown)
		require.Less(t, time.Since(began), time.Second)
		b.store.set(func() { b.store.down = false })
		time.Sleep(time.Minute)
		require.NoError(t, ask(), "it heals without a submission in the stream")
		b.stop()
		require.ErrorIs(t, ask(), errStopping)
	})
}

func TestRequestsAreStoredTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Batch: 1000})
		b.store.before = func(context.Context, []*task.Task) error {
			time.Sleep(time.Second)
			return nil
		}
		tasks := make([]*task.Task, 1000)
		for i := range tasks {
			tasks[i] = &task.Task{ID: fmt.Sprint(i % 999), SubmitHash: "x"} // the last repeats the first
		}
		status, errs := b.storeAll(t.Context(), tasks)
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, task.Inserted, status[0])
		require.Equal(t, task.Duplicate, status[999])
		require.Len(t, b.store.batches, 3)
		b.stop()
	})
}
