package mongostore

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// act is one call of the store as an actor made it. The model judges what it finds in the tasks afterwards by the acts of the step.
type act struct {
	kind    string // insert, claim, beat, finish, revive, expire, cancel
	who     string
	by      string // as changes name its author
	ids     []string
	claim   string // of a claim
	lease   time.Duration
	owned   []task.Owned   // of a beat
	reports []task.Outcome // of a finish
	read    []*task.Task   // of a revival or an expiry: the tasks as they were read
	call    func(*act)     // makes the call and keeps its answer in the act
	learn   func(*act)     // what the actor makes of the answer; not called when the answer is lost
	lost    func(*act)     // what the actor does without an answer

	before, after interval // the database's time around the call
	made          map[string]bool
	err           error
	got           []string // ids that the answer names
	held          []*task.Task
	answers       []error
	beaten        task.HeartbeatResult
	cancelled     task.CancelStatus
}

// interval is what is known of the database's time at one moment.
type interval struct{ earliest, latest time.Time }

func (a *act) String() string {
	return fmt.Sprintf("%s by %s of %v claim=%s lease=%v", a.kind, a.who, a.ids, a.claim, a.lease)
}

// model is the reference: what a task is, told in plain Go. It is stepped by the entries of the task's own history, each of which
// an act of the step must justify.
type model struct {
	task.Task
	claims int // executions granted
}

// replay steps the model by one entry, or says why nothing justifies it.
func (m *model) replay(e task.Entry, acts []*act) error {
	switch {
	case m.State.Terminal():
		return fmt.Errorf("a terminal state changed")
	case e.Seq != m.Seq+1:
		return fmt.Errorf("seq %d follows %d", e.Seq, m.Seq)
	case e.From != m.State:
		return fmt.Errorf("leaves %s, but the task is %s", e.From, m.State)
	case !task.Allowed(e.From, e.To, e.Reason):
		return fmt.Errorf("no such transition")
	}
	var why error
	for _, a := range acts {
		if a.by != e.By || a.made[m.ID] || !slices.Contains(a.ids, m.ID) {
			continue
		}
		next := *m
		if why = next.apply(e, a); why == nil {
			a.made[m.ID] = true
			next.Seq = e.Seq
			*m = next
			return m.limits()
		}
	}
	if why == nil {
		why = fmt.Errorf("nobody did that")
	}
	return why
}

func (m *model) limits() error {
	switch {
	case m.Attempts != m.claims:
		return fmt.Errorf("%d attempts, %d executions granted", m.Attempts, m.claims)
	case m.Failures > m.MaxAttempts:
		return fmt.Errorf("%d failures of %d", m.Failures, m.MaxAttempts)
	case m.Losses > m.MaxLosses+1:
		return fmt.Errorf("%d losses of %d", m.Losses, m.MaxLosses)
	case !m.State.Terminal() && (m.Failures >= m.MaxAttempts || m.Losses > m.MaxLosses):
		return fmt.Errorf("goes on although its attempts or losses are used up")
	}
	return nil
}

func (m *model) apply(e task.Entry, a *act) error {
	switch a.kind {
	case "claim":
		return m.claimed(e, a)
	case "finish":
		i := slices.IndexFunc(a.reports, func(o task.Outcome) bool { return o.ID == m.ID })
		return m.finished(e, &a.reports[i])
	case "revive":
		return m.revived(e, a.read[slices.Index(a.ids, m.ID)])
	case "expire":
		r := a.read[slices.Index(a.ids, m.ID)]
		if m.State != r.State || !m.ExpiresAt.Equal(r.ExpiresAt) || e.To != task.Failed {
			return fmt.Errorf("expired, but it is %s and was read as %s", m.State, r.State)
		}
		m.end(e)
		return nil
	case "cancel":
		return m.cancel(e)
	}
	return fmt.Errorf("a %s makes no transition", a.kind)
}

func (m *model) claimed(e task.Entry, a *act) error {
	switch {
	case m.State != task.Pending || e.To != task.Running || e.Claim != a.claim || e.Attempt != m.Attempts+1:
		return fmt.Errorf("claimed while %s, attempt %d after %d", m.State, e.Attempt, m.Attempts)
	case !m.CancelRequestedAt.IsZero():
		return fmt.Errorf("claimed after a cancel")
	case m.ScheduledAt.After(a.after.latest):
		return fmt.Errorf("claimed before its time %v", m.ScheduledAt)
	case !m.ExpiresAt.IsZero() && m.ExpiresAt.Before(a.before.earliest):
		return fmt.Errorf("claimed after its expiry %v", m.ExpiresAt)
	}
	m.claims++
	m.State, m.Claim, m.WorkerID, m.Attempts, m.StartedAt = task.Running, e.Claim, a.who, m.Attempts+1, e.At
	m.DeadlineAt = e.At.Add(m.Timeout + task.TimeoutGrace)
	m.lend(e.At.Add(a.lease))
	return nil
}

// lend sets the lease within its bounds.
func (m *model) lend(until time.Time) {
	if m.DeadlineAt.Before(until) {
		until = m.DeadlineAt
	}
	if c := m.CancelRequestedAt; !c.IsZero() && c.Add(task.CancelGrace).Before(until) {
		until = c.Add(task.CancelGrace)
	}
	m.LeaseUntil, m.CheckAt = until, until
}

// leave ends the execution.
func (m *model) leave(e task.Entry) error {
	if !m.CancelRequestedAt.IsZero() && e.To == task.Pending {
		return fmt.Errorf("pending again after a cancel")
	}
	m.WorkerID, m.LeaseUntil, m.DeadlineAt = "", time.Time{}, time.Time{}
	if m.State = e.To; e.To == task.Pending {
		m.CheckAt = m.ExpiresAt
		return nil
	}
	m.end(e)
	return nil
}

func (m *model) end(e task.Entry) { m.State, m.FinishedAt, m.CheckAt = e.To, e.At, time.Time{} }

// dueAgain: what goes back without a delay keeps its place, but is never put off.
func (m *model) dueAgain(e task.Entry) {
	if e.At.Before(m.ScheduledAt) {
		m.ScheduledAt = e.At
	}
}

func (m *model) finished(e task.Entry, o *task.Outcome) error {
	if m.State != task.Running || m.Claim != o.Claim || e.Claim != o.Claim || e.Attempt != m.Attempts {
		return fmt.Errorf("a report under claim %s was taken while %s under claim %s", o.Claim, m.State, m.Claim)
	}
	to, reason, delay, charged := task.Pending, task.ReasonReleased, time.Duration(-1), false
	switch o.Kind {
	case task.Succeeded:
		to, reason = task.Success, task.ReasonSucceeded
	case task.RejectedResult:
		to, reason, charged = task.Failed, task.ReasonRejectedResult, true
	case task.FailedForGood:
		to, reason, charged = task.Failed, task.ReasonNonRetryable, true
	case task.Snoozed:
		reason, delay = task.ReasonSnoozed, o.Delay
	case task.FailedAttempt:
		charged = true
		if reason, delay = task.ReasonRetry, o.Delay; m.Failures+1 >= m.MaxAttempts {
			to, reason = task.Failed, task.ReasonExhausted
		} else if delay == 0 {
			delay = m.Retry.Delay(m.Failures+1, o.Random)
		}
	}
	if to == task.Pending && !m.CancelRequestedAt.IsZero() {
		to, reason = task.Cancelled, task.ReasonCancelled
	}
	if e.To != to || e.Reason != reason {
		return fmt.Errorf("a report of kind %d became %s (%s), not %s (%s)", o.Kind, e.To, e.Reason, to, reason)
	}
	if charged {
		m.Failures++
	}
	switch {
	case delay < 0 && o.Kind != task.Succeeded && !charged:
		m.dueAgain(e)
	case to == task.Pending:
		m.ScheduledAt = e.At.Add(delay.Truncate(time.Millisecond))
	}
	return m.leave(e)
}

func (m *model) revived(e task.Entry, read *task.Task) error {
	if m.State != task.Running || m.Claim != read.Claim || !m.LeaseUntil.Equal(read.LeaseUntil) {
		return fmt.Errorf("revived as read (claim %s until %v), but it is %s (claim %s until %v)",
			read.Claim, read.LeaseUntil, m.State, m.Claim, m.LeaseUntil)
	}
	to, reason := task.Pending, task.ReasonLeaseExpired
	switch {
	case !m.CancelRequestedAt.IsZero():
		to, reason = task.Cancelled, task.ReasonCancelled
	case m.Losses >= m.MaxLosses:
		to, reason = task.Failed, task.ReasonWorkerLost
	case !m.LeaseUntil.Before(m.DeadlineAt):
		reason = task.ReasonTimeout
	}
	if e.To != to || e.Reason != reason {
		return fmt.Errorf("a revival became %s (%s), not %s (%s)", e.To, e.Reason, to, reason)
	}
	m.Losses++
	switch delay := task.LossDelay(m.ID, m.Losses); {
	case delay > 0 && to == task.Pending:
		m.ScheduledAt = e.At.Add(delay)
	case delay == 0 && (to == task.Pending || to == task.Cancelled && m.Losses <= m.MaxLosses):
		m.dueAgain(e)
	}
	return m.leave(e)
}

func (m *model) cancel(e task.Entry) error {
	switch m.State {
	case task.Pending, task.Waiting:
		if e.To != task.Cancelled {
			return fmt.Errorf("a cancel made it %s", e.To)
		}
		m.end(e)
		return nil
	case task.Running:
		if e.To != task.Running || !m.CancelRequestedAt.IsZero() {
			return fmt.Errorf("a running task was cancelled to %s, asked before at %v", e.To, m.CancelRequestedAt)
		}
		m.CancelRequestedAt = e.At
		m.lend(m.LeaseUntil)
		return nil
	}
	return fmt.Errorf("cancelled while %s", m.State)
}

// beat extends the lease when the stored one shows it: a beat leaves no entry in the history.
func (m *model) beat(is *task.Task, acts []*act) {
	for _, a := range acts {
		if a.kind != "beat" || m.State != task.Running || !slices.Contains(a.owned, task.Owned{ID: m.ID, Claim: m.Claim}) {
			continue
		}
		first, last := *m, *m
		first.lend(a.before.earliest.Add(a.lease - time.Millisecond)) // stored times are whole milliseconds
		last.lend(a.after.latest.Add(a.lease))
		if !is.LeaseUntil.Before(first.LeaseUntil) && !is.LeaseUntil.After(last.LeaseUntil) {
			m.LeaseUntil, m.CheckAt = is.LeaseUntil, is.CheckAt
		}
	}
}

// judge compares a task with what it was before the step, as the acts of the step explain it.
func (m *model) judge(is *task.Task, acts []*act) error {
	seq := m.Seq
	for _, e := range is.History {
		if e.Seq <= seq {
			continue
		}
		if err := m.replay(e, acts); err != nil {
			return fmt.Errorf("%s -> %s (%s) by %s: %w", e.From, e.To, e.Reason, e.By, err)
		}
	}
	m.beat(is, acts)
	if want, found := facts(&m.Task), facts(is); want != found {
		return fmt.Errorf("stored\n\t%s\nexpected\n\t%s", found, want)
	}
	if seq == m.Seq {
		// Nothing happened: not one field may differ, but for the lease that a beat extended.
		m.Task.LeaseUntil, m.Task.CheckAt = is.LeaseUntil, is.CheckAt
		if !reflect.DeepEqual(&m.Task, is) {
			return fmt.Errorf("changed without an entry:\n\t%+v\nwas\n\t%+v", is, m.Task)
		}
	}
	last := is.History[len(is.History)-1]
	change, err := task.ParseChange(is.Change)
	if err != nil || change.Seq != is.Seq || change.From != last.From || change.To != last.To || change.Reason != last.Reason ||
		change.By != last.By || change.Claim != last.Claim {
		return fmt.Errorf("the change %q is not the newest entry %+v", is.Change, last)
	}
	m.Task = *is
	return nil
}

// facts is what the model knows of a task.
func facts(t *task.Task) string {
	at := func(v time.Time) int64 {
		if v.IsZero() {
			return 0
		}
		return v.UnixMilli()
	}
	return fmt.Sprintf("%s seq=%d attempts=%d failures=%d losses=%d claim=%q worker=%q scheduled=%d started=%d finished=%d deadline=%d lease=%d check=%d cancel=%d",
		t.State, t.Seq, t.Attempts, t.Failures, t.Losses, t.Claim, t.WorkerID, at(t.ScheduledAt), at(t.StartedAt), at(t.FinishedAt),
		at(t.DeadlineAt), at(t.LeaseUntil), at(t.CheckAt), at(t.CancelRequestedAt))
}
