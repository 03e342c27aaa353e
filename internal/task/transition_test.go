package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// allReasons is what a random walk may try; the table must refuse all that it does not name.
var allReasons = []Reason{
	ReasonSubmitted, ReasonDependenciesMet, ReasonGateOpen, ReasonHeld, ReasonRescheduled, ReasonReplaced, ReasonMoved,
	ReasonClaimed, ReasonSucceeded, ReasonError, ReasonPanic, ReasonTimeout, ReasonLeaseExpired, ReasonWorkerLost,
	ReasonReleased, ReasonSnoozed, ReasonRetry, ReasonExhausted, ReasonNonRetryable, ReasonCancelled, ReasonExpired,
	ReasonParentFailed, ReasonConditionUnmet, ReasonRejectedResult, ReasonOperator,
}

func TestTableIsWellFormed(t *testing.T) {
	seen := map[Transition]bool{}
	for _, row := range Transitions {
		require.False(t, seen[row], "stands twice: %+v", row)
		seen[row] = true
		require.True(t, row.From == "" || row.From.Valid(), "unknown state in %+v", row)
		require.True(t, row.To.Valid(), "unknown state in %+v", row)
		require.NotEqual(t, row.From, row.To, "a move that stays belongs into Stays: %+v", row)
		require.False(t, row.From.Terminal(), "a terminal state never changes: %+v", row)
		require.Contains(t, allReasons, row.Reason)
		require.Contains(t, []string{MoverSubmitter, MoverWorker, MoverReaper, MoverDispatcher, MoverOperator}, row.Mover)
		require.True(t, Allowed(row.From, row.To, row.Reason))
	}
	for state, reasons := range Stays {
		require.False(t, state.Terminal(), "%s is terminal, nothing may be written to it", state)
		for _, reason := range reasons {
			require.True(t, Allowed(state, state, reason))
		}
	}
}

func TestEveryLiveStateCanEnd(t *testing.T) {
	for _, start := range States {
		reached := map[State]bool{start: true}
		for grew := true; grew; {
			grew = false
			for _, row := range Transitions {
				if reached[row.From] && !reached[row.To] {
					reached[row.To], grew = true, true
				}
			}
		}
		if start.Terminal() {
			require.Len(t, reached, 1, "%s has an exit", start)
			continue
		}
		for _, end := range []State{Failed, Cancelled} {
			require.True(t, reached[end], "%s never becomes %s", start, end)
		}
		require.True(t, reached[Success], "%s never becomes success", start)
	}
}

// A cancel must be able to end a task in every state that is not terminal, and so must whoever finds its worker dead.
func TestEveryLiveStateCanBeCancelled(t *testing.T) {
	for _, s := range States {
		require.Equal(t, !s.Terminal(), Allowed(s, Cancelled, ReasonCancelled), "cancel in state %s", s)
	}
}

func TestAllowedAgreesWithTheTable(t *testing.T) {
	from := rapid.SampledFrom(append([]State{"", "unknown"}, States...))
	rapid.Check(t, func(rt *rapid.T) {
		f, to, why := from.Draw(rt, "from"), from.Draw(rt, "to"), rapid.SampledFrom(allReasons).Draw(rt, "reason")
		want := false
		for _, row := range Transitions {
			want = want || row.From == f && row.To == to && row.Reason == why
		}
		if f == to {
			for _, r := range Stays[f] {
				want = want || r == why
			}
		}
		if got := Allowed(f, to, why); got != want {
			rt.Fatalf("Allowed(%q, %q, %q) = %v, the table says %v", f, to, why, got, want)
		}
		if f.Terminal() && Allowed(f, to, why) {
			rt.Fatalf("%s is terminal and may go to %s", f, to)
		}
	})
}

func TestDecideStaysInTheTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := Outcome{
			Kind:   OutcomeKind(rapid.IntRange(int(Succeeded), int(CancelledByRequest)).Draw(rt, "kind")),
			Delay:  rapid.SampledFrom([]time.Duration{-1, 0, 1, time.Second, 1 << 62}).Draw(rt, "delay"),
			Random: rapid.Float64Range(0, 0.999).Draw(rt, "random"),
			Task: &Task{
				Failures:    rapid.IntRange(0, 12_000).Draw(rt, "failures"),
				MaxAttempts: rapid.IntRange(1, MaxMaxAttempts).Draw(rt, "maxAttempts"),
				Retry:       DefaultRetry,
			},
		}
		to, reason, delay := o.Decide()
		legal := false
		for _, row := range Transitions {
			legal = legal || row == Transition{Running, to, reason, MoverWorker}
		}
		if !legal {
			rt.Fatalf("a worker may not write running -> %s (%s)", to, reason)
		}
		if delay < 0 || delay > 0 && to != Pending {
			rt.Fatalf("%s after %s", to, delay)
		}
		if o.Kind == FailedAttempt && (to == Failed) != (o.Task.Failures+1 >= o.Task.MaxAttempts) {
			rt.Fatalf("failure %d of %d leads to %s", o.Task.Failures+1, o.Task.MaxAttempts, to)
		}
		if o.Kind == Released && (delay != 0 || reason != ReasonReleased) {
			rt.Fatalf("a released task waits %s for %s", delay, reason)
		}
	})
}

func TestDecide(t *testing.T) {
	at := func(failures int) *Task { return &Task{Failures: failures, MaxAttempts: 3, Retry: DefaultRetry} }
	for _, c := range []struct {
		name   string
		report Outcome
		to     State
		reason Reason
		delay  string
	}{
		{"success", Outcome{Kind: Succeeded, Task: at(2)}, Success, ReasonSucceeded, "0s"},
		{"first failure", Outcome{Kind: FailedAttempt, Task: at(0)}, Pending, ReasonRetry, "1s"},
		{"second failure, half the jitter", Outcome{Kind: FailedAttempt, Task: at(1), Random: 0.5}, Pending, ReasonRetry, "2.5s"},
		{"last failure", Outcome{Kind: FailedAttempt, Task: at(2)}, Failed, ReasonExhausted, "0s"},
		{"retry-after wins over the policy", Outcome{Kind: FailedAttempt, Task: at(0), Delay: 7e9}, Pending, ReasonRetry, "7s"},
		{"retry-after does not buy an attempt", Outcome{Kind: FailedAttempt, Task: at(2), Delay: 7e9}, Failed, ReasonExhausted, "0s"},
		{"for good", Outcome{Kind: FailedForGood, Task: at(0)}, Failed, ReasonNonRetryable, "0s"},
		{"result too large", Outcome{Kind: RejectedResult, Task: at(0)}, Failed, ReasonRejectedResult, "0s"},
		{"released on the last attempt", Outcome{Kind: Released, Task: at(2)}, Pending, ReasonReleased, "0s"},
		{"snoozed on the last attempt", Outcome{Kind: Snoozed, Task: at(2), Delay: 60e9}, Pending, ReasonSnoozed, "1m0s"},
		{"cancelled", Outcome{Kind: CancelledByRequest, Task: at(0)}, Cancelled, ReasonCancelled, "0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			to, reason, delay := c.report.Decide()
			require.Equal(t, c.to, to)
			require.Equal(t, c.reason, reason)
			require.Equal(t, c.delay, delay.String())
		})
	}
}
