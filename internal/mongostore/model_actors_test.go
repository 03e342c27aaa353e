package mongostore

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/intake"
	"github.com/ax-scheduler/ax/internal/task"
)

// draw chooses who acts next, and how; nil when that one has nothing to do.
func (g *game) draw(label string) *act {
	actors := []func() *act{
		func() *act { return g.submit(rapid.IntRange(1, 2).Draw(g.t, "tasks")) },
		g.claim, g.claim, g.claim, g.claim, g.beat, g.beat, g.report, g.report, g.report, g.resend,
		g.resolve, g.resolve, g.sweep, g.sweep, g.act, g.act, g.act, g.cancel, g.cancel, g.rerun, g.arrive, g.arrive,
	}
	return actors[rapid.IntRange(0, len(actors)-1).Draw(g.t, label)]()
}

func (g *game) worker() *hand {
	return g.workers[rapid.IntRange(0, len(g.workers)-1).Draw(g.t, "worker")]
}

// some chooses a part of the list.
func some[T any](g *game, from []T, most int) []T {
	if len(from) == 0 {
		return nil
	}
	at := rapid.IntRange(0, len(from)-1).Draw(g.t, "from")
	n := rapid.IntRange(1, min(most, len(from))).Draw(g.t, "count")
	var out []T
	for i := range n {
		out = append(out, from[(at+i)%len(from)])
	}
	return out
}

func (g *game) submit(n int) *act {
	var tasks []*task.Task
	for range n {
		tasks = append(tasks, newTask(func(tk *task.Task) {
			g.submitted++
			tk.ID, tk.SubmitHash = fmt.Sprintf("t%d", g.submitted), fmt.Sprintf("v1:%d", g.submitted)
			tk.MaxAttempts = rapid.IntRange(1, 3).Draw(g.t, "maxAttempts")
			tk.MaxLosses = rapid.IntRange(0, 2).Draw(g.t, "maxLosses")
			tk.Timeout = rapid.SampledFrom([]time.Duration{30 * time.Minute, time.Millisecond}).Draw(g.t, "timeout")
			tk.Retry = task.RetryPolicy{Base: task.MinRetryBase, Factor: 2, Max: task.MinRetryBase, Jitter: 0.5}
			tk.Held = rapid.IntRange(0, 9).Draw(g.t, "held") == 9
			now := g.now().latest.UTC()
			switch rapid.IntRange(0, 9).Draw(g.t, "times") {
			case 9:
				tk.ExpiresAt = now.Add(3 * time.Millisecond).Truncate(time.Millisecond)
			case 8:
				tk.ExpiresAt = now.Add(time.Hour).Truncate(time.Millisecond)
			case 7:
				tk.ScheduledAt = now.Add(time.Hour).Truncate(time.Millisecond)
			}
		}))
	}
	return g.insert(tasks)
}

// insert stores tasks; without an answer the submitter inserts them again, which must store nothing twice.
func (g *game) insert(tasks []*task.Task) *act {
	a := &act{kind: "insert", who: "submitter", ids: idsOf(tasks)}
	a.call = func(a *act) {
		known := make([]bool, len(tasks))
		for i, tk := range tasks {
			m := g.models[tk.ID]
			if known[i] = m != nil && m.Seq > 0; m == nil {
				g.models[tk.ID] = &model{}
			}
		}
		status, err := g.s.Insert(g.ctx, tasks)
		if a.err = err; err != nil {
			return
		}
		for i, st := range status {
			if st != task.Duplicate && (known[i] || st != task.Inserted) {
				g.t.Fatalf("insert of %s, stored before: %v: %v", tasks[i].ID, known[i], st)
			}
		}
	}
	a.lost = func(*act) { g.late = append(g.late, g.insert(tasks)) }
	return a
}

// rerun runs an ended task again, as a new one.
func (g *game) rerun() *act {
	var ended []string
	for _, id := range g.order {
		if g.models[id].State.Terminal() {
			ended = append(ended, id)
		}
	}
	if len(ended) == 0 {
		return nil
	}
	old := g.models[rapid.SampledFrom(ended).Draw(g.t, "of")]
	again, err := intake.Rerun(&old.Task, time.Now())
	g.must(err)
	return g.insert([]*task.Task{again})
}

func (g *game) lease() time.Duration {
	return rapid.SampledFrom([]time.Duration{30 * time.Second, time.Millisecond}).Draw(g.t, "lease")
}

func (g *game) claim() *act {
	w := g.worker()
	ids := some(g, g.order, 4)
	g.claims++
	a := &act{kind: "claim", who: w.name, by: "worker/" + w.name, ids: ids, claim: fmt.Sprintf("c%d", g.claims), lease: g.lease()}
	a.call = func(a *act) {
		a.held, a.err = g.s.Claim(g.ctx, task.ClaimRequest{IDs: a.ids, Claim: a.claim, Worker: w.name, Lease: a.lease})
		a.got = idsOf(a.held)
	}
	a.learn = func(a *act) { w.held = append(w.held, a.held...) }
	a.lost = func(a *act) { w.unknown = append(w.unknown, a) }
	return a
}

// resolve looks a claim without an answer up, as often as the worker likes; what turns up is run, or handed back at once.
func (g *game) resolve() *act {
	w := g.worker()
	if len(w.unknown) == 0 {
		return nil
	}
	u := rapid.SampledFrom(w.unknown).Draw(g.t, "unknown")
	back := rapid.Bool().Draw(g.t, "hand back")
	a := &act{kind: "resolve", who: w.name, ids: u.ids, claim: u.claim}
	a.call = func(a *act) {
		a.held, a.err = g.s.Resolve(g.ctx, u.claim, u.ids)
		a.got = idsOf(a.held)
	}
	a.learn = func(a *act) {
		for _, tk := range a.held {
			if m := g.models[tk.ID]; m.Claim != u.claim {
				g.t.Fatalf("%s is held under %s, not %s", tk.ID, m.Claim, u.claim)
			}
			if slices.ContainsFunc(w.held, func(h *task.Task) bool { return h.ID == tk.ID && h.Claim == tk.Claim }) || w.reported(tk) {
				continue
			}
			if w.held = append(w.held, tk); back {
				w.end(tk, task.Outcome{Kind: task.Released})
			}
		}
	}
	return a
}

func (w *hand) reported(tk *task.Task) bool {
	return slices.ContainsFunc(w.reports, func(o task.Outcome) bool { return o.ID == tk.ID && o.Claim == tk.Claim })
}

// end turns an execution into a report that waits for its answer.
func (w *hand) end(tk *task.Task, o task.Outcome) {
	o.Owned, o.Worker, o.Task = task.Owned{ID: tk.ID, Claim: tk.Claim}, w.name, tk
	w.held = slices.DeleteFunc(slices.Clone(w.held), func(h *task.Task) bool { return h.ID == tk.ID && h.Claim == tk.Claim })
	w.reports = append(w.reports, o)
}

func (g *game) beat() *act {
	w := g.worker()
	if len(w.held) == 0 {
		return nil
	}
	a := &act{kind: "beat", who: w.name, lease: g.lease()}
	for _, tk := range w.held {
		if !slices.Contains(a.ids, tk.ID) { // the store is asked about each task once a beat
			a.ids, a.owned = append(a.ids, tk.ID), append(a.owned, task.Owned{ID: tk.ID, Claim: tk.Claim})
		}
	}
	a.call = func(a *act) {
		a.beaten, a.err = g.s.Heartbeat(g.ctx, task.HeartbeatRequest{Worker: w.name, Owned: a.owned, Lease: a.lease})
	}
	a.learn = func(a *act) { // half of the time a handler does not listen, and reports all the same
		if len(a.beaten.Lost)%2 == 1 {
			w.held = slices.DeleteFunc(slices.Clone(w.held), func(h *task.Task) bool { return slices.Contains(a.beaten.Lost, task.Owned{ID: h.ID, Claim: h.Claim}) })
		}
	}
	return a
}

// report ends executions of one worker in some way.
func (g *game) report() *act {
	w := g.worker()
	if len(w.held) == 0 {
		return nil
	}
	for _, tk := range some(g, w.held, 3) {
		o := task.Outcome{Kind: task.OutcomeKind(rapid.IntRange(int(task.Succeeded), int(task.CancelledByRequest)).Draw(g.t, "kind"))}
		switch o.Kind {
		case task.Succeeded:
			o.Result = json.RawMessage(`{"ok":true}`)
		case task.FailedAttempt:
			o.Delay = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Hour}).Draw(g.t, "retry after")
			o.Random = rapid.SampledFrom([]float64{0, 0.5, 0.99}).Draw(g.t, "jitter")
			o.Error = &task.Error{Message: "no", Cause: task.ReasonError}
		case task.Snoozed:
			o.Delay = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Hour}).Draw(g.t, "snooze")
		}
		w.end(tk, o)
	}
	return g.send(w)
}

// resend sends reports without an answer once more, as they were.
func (g *game) resend() *act {
	if w := g.worker(); len(w.reports) > 0 {
		return g.send(w)
	}
	return nil
}

func (g *game) send(w *hand) *act {
	a := &act{kind: "finish", who: w.name, by: "worker/" + w.name}
	for _, o := range w.reports {
		if !slices.Contains(a.ids, o.ID) {
			a.ids, a.reports = append(a.ids, o.ID), append(a.reports, o)
		}
	}
	a.call = func(a *act) { a.answers, a.err = g.s.Finish(g.ctx, a.reports) }
	a.learn = func(a *act) {
		w.reports = slices.DeleteFunc(slices.Clone(w.reports), func(o task.Outcome) bool {
			return slices.ContainsFunc(a.reports, func(sent task.Outcome) bool { return sent.Owned == o.Owned })
		})
	}
	return a
}

// sweep reads what is due by the database's time, or by one that runs ahead, for later.
func (g *game) sweep() *act {
	due := g.now().earliest
	if rapid.IntRange(0, 2).Draw(g.t, "ahead") == 2 {
		due = due.Add(30 * time.Minute)
	}
	a := &act{kind: "sweep", who: "reaper"}
	a.call = func(a *act) {
		a.held, a.err = g.s.SweepCheck(g.ctx, due, 1000)
		a.got = idsOf(a.held)
	}
	a.learn = func(a *act) {
		if len(a.held) > 0 {
			g.readings = append(g.readings, a.held)
		}
	}
	return a
}

// act has a reaper end what was read, now or long ago: executions whose lease was over then, and what had expired.
func (g *game) act() *act {
	if len(g.readings) == 0 {
		return nil
	}
	reading := rapid.SampledFrom(g.readings).Draw(g.t, "reading")
	var running, expiring []*task.Task
	now := g.now().latest
	for _, tk := range reading {
		switch {
		case tk.State == task.Running:
			running = append(running, tk)
		case !tk.ExpiresAt.IsZero() && tk.ExpiresAt.Before(now):
			expiring = append(expiring, tk)
		}
	}
	if len(running) > 0 && (len(expiring) == 0 || rapid.Bool().Draw(g.t, "running")) {
		return g.end("revive", running)
	}
	if len(expiring) > 0 {
		return g.end("expire", expiring)
	}
	return nil
}

func (g *game) end(kind string, read []*task.Task) *act {
	who := fmt.Sprintf("r%d", rapid.IntRange(1, 2).Draw(g.t, "reaper"))
	a := &act{kind: kind, who: who, by: "reaper/" + who, read: read, ids: idsOf(read)}
	a.call = func(a *act) {
		if kind == "revive" {
			a.got, a.err = g.s.Revive(g.ctx, read, who)
		} else {
			a.got, a.err = g.s.Expire(g.ctx, read, who)
		}
	}
	return a
}

func (g *game) cancel() *act {
	if len(g.order) == 0 {
		return nil
	}
	return g.cancelOf(rapid.SampledFrom(g.order).Draw(g.t, "task"))
}

func (g *game) cancelOf(id string) *act {
	a := &act{kind: "cancel", who: "ops", by: "operator/ops", ids: []string{id}}
	a.call = func(a *act) { a.cancelled, _, a.err = g.s.Cancel(g.ctx, id, "ops") }
	return a
}

// arrive lets a call that was given up take place at last.
func (g *game) arrive() *act {
	if len(g.late) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(g.late)-1).Draw(g.t, "late")
	a := g.late[i]
	g.late = slices.Delete(slices.Clone(g.late), i, i+1)
	a.learn = nil // nobody hears its answer
	return a
}

// settle lets the faults end: what is late arrives, leases run out, what is ready runs. Every task must then have ended.
func (g *game) settle() {
	for len(g.late) > 0 {
		a := g.late[0]
		g.late = g.late[1:]
		a.learn = nil
		g.step(a, nil, 0)
	}
	g.readings = nil
	g.step(g.settleSweep(), nil, 0)
	for _, reading := range g.readings {
		running := slices.DeleteFunc(slices.Clone(reading), func(tk *task.Task) bool { return tk.State != task.Running })
		if len(running) > 0 {
			g.step(g.end("revive", running), nil, 0)
		}
	}
	w := &hand{name: "last"}
	g.claims++
	a := &act{kind: "claim", who: w.name, by: "worker/last", ids: g.order, claim: fmt.Sprintf("c%d", g.claims), lease: time.Minute}
	a.call = func(a *act) {
		a.held, a.err = g.s.Claim(g.ctx, task.ClaimRequest{IDs: a.ids, Claim: a.claim, Worker: w.name, Lease: a.lease})
		a.got = idsOf(a.held)
	}
	g.step(a, nil, 0)
	for _, tk := range a.held {
		w.end(tk, task.Outcome{Kind: task.Succeeded})
	}
	if len(a.held) > 0 {
		g.step(g.send(w), nil, 0)
	}
	for _, id := range g.order {
		if !g.models[id].State.Terminal() {
			g.step(g.cancelOf(id), nil, 0)
		}
		if m := g.models[id]; !m.State.Terminal() {
			g.t.Fatalf("task %s does not end: %s", id, facts(&m.Task))
		}
	}
}

func (g *game) settleSweep() *act {
	due := g.now().latest.Add(2 * time.Hour)
	a := &act{kind: "sweep", who: "reaper"}
	a.call = func(a *act) {
		a.held, a.err = g.s.SweepCheck(g.ctx, due, 1000)
		a.got = idsOf(a.held)
	}
	a.learn = func(a *act) {
		g.readings = append(g.readings, a.held)
		for _, id := range g.order {
			if m := g.models[id]; m.State == task.Running && !slices.Contains(a.got, id) {
				g.t.Fatalf("the sweep does not see %s: %s", id, facts(&m.Task))
			}
		}
	}
	return a
}
