package main

// mutation is one guard taken away by hand, and the test that must then fail.
type mutation struct {
	guarantee string // G1 to G12 of docs/guarantees.md
	guard     string // what is taken away, for the table
	file      string // from the module's folder
	old, new  string // old stands exactly once in the file
	pkg, test string
}

const store = "internal/mongostore"

var list = []mutation{
	{"G1", "a submission is acknowledged only once its task has an answer from the database", "services/submitter/submit/batch.go",
		"if i >= len(status) || status[i] == 0 {", "if i >= len(status) && err == nil {",
		"services/submitter/submit", "TestDatabaseKilledAndBack"},
	{"G1", "what cannot be kept in AX_DEAD is not acknowledged", "services/submitter/submit/dead.go",
		"			s.held.giveBack(r.msg, s.cfg.Aside)\n			continue\n", "", "services/submitter/submit", "TestWhatCannotBeBuriedIsNotAcked"},
	{"G1", "a repeat of the same submission is no conflict", store + "/insert.go",
		"case hash == tasks[at].SubmitHash:", `case hash == "":`, store, "TestInsertWhoseReplyIsLost"},

	{"G2", "a claim takes only what is pending", store + "/claim.go",
		`{Key: "state", Value: is(string(task.Pending))},`, "", store, "TestClaimRace"},
	{"G2", "a claim takes nothing before its time", store + "/claim.go",
		`{Key: "scheduledAt", Value: bson.D{{Key: "$lte", Value: now.Add(-bound)}}},`, "", store, "TestClaimGuard"},
	{"G2", "a beat for an old execution leaves the new one of the same worker alone", store + "/heartbeat.go",
		`bson.D{{Key: "$in", Value: bson.A{bson.D{{Key: "$concat", Value: bson.A{"$_id", "|", "$claim"}}}, literal(pairs)}}},`, "true,",
		store, "TestHeartbeatLeavesAnExecutionAloneThatItDoesNotName"},
	{"G2", "a revival leaves a lease alone that was extended since it was read", store + "/sweep.go",
		`, {Key: "leaseUntil", Value: e.lease},`, ",", store, "TestReviveGuard"},
	{"G2", "a handler is told before its lease can end", "pkg/worker/execution.go",
		"return sent.Add(r.lease - r.lease/5)", "return sent.Add(2 * r.lease)", "pkg/worker", "TestHandlerIsCancelledBeforeItsLeaseCanEnd"},

	{"G2", "a cancel asks only the execution that was read", store + "/cancel.go",
		`bson.E{Key: "claim", Value: t.Claim}, `, "", store, "TestCancelGuard"},
	{"G2", "a look-up returns only what the claim holds", store + "/claim.go",
		"if t.Claim == claim && t.State == task.Running {", "if t.State == task.Running {", store, "TestFindWonLeavesOutWhatHasMovedOn"},

	{"G2", "a task that runs is not replaced", store + "/unique.go",
		"case holder.State == task.Running, u.OnConflict", "case u.OnConflict", store, "TestUniqueWhileActive"},
	{"G2", "a key is taken over only from a holder that has ended", store + "/unique.go",
		"ended := err != nil || holder.State.Terminal()", "ended := true", store, "TestUniqueWhileActive"},

	{"G3", "a report changes only the execution that it is about", store + "/finish.go",
		`{Key: "claim", Value: is(g[0].o.Claim)},`, "", store, "TestFinishRefusesWhatIsNoLongerItsOwn"},
	{"G3", "a report changes nothing that has ended", store + "/finish.go",
		`{Key: "claim", Value: is(g[0].o.Claim)},
		{Key: "state", Value: is(string(task.Running))},`, `{Key: "claim", Value: is(g[0].o.Claim)},`, store, "TestFinishTwice"},
	{"G3", "a report whose answer was lost is found in the history", store + "/finish.go",
		"!r.recordedIn(t.History)", "true", store, "TestFinishWhoseReplyIsLost"},
	{"G3", "an earlier report of the same worker is not taken for this one", store + "/finish.go",
		" && e.Claim == r.o.Claim", "", store, "TestFinishIsNotRecordedByAnEarlierExecution"},

	{"G4", "each change raises seq", store + "/transition.go",
		`{Key: "seq", Value: add("$seq", int64(1))}`, `{Key: "seq", Value: "$seq"}`, store, "TestFinishKinds"},
	{"G4", "each change leaves an entry in the history", store + "/transition.go",
		"bson.A{entry}", "bson.A{}", store, "TestClaimTakesOwnership"},

	{"G5", "the notifier's place moves only behind what NATS has acknowledged", "services/notifier/notify/tail.go",
		`		return fmt.Errorf("publish events: %w", err)
	}
	return n.bury(ctx, dead)`, `		return n.bury(ctx, dead)
	}
	return n.bury(ctx, dead)`, "services/notifier/notify", "TestCrashAnywhereLosesNothing"},
	{"G5", "a former leader cannot move the place back", store + "/cursor.go",
		`, {Key: "epoch", Value: bson.D{{Key: "$lte", Value: epoch}}}}`, "}", store, "TestCursorOfAFormerLeaderIsRefused"},
	{"G5", "an event stream that was lost is filled again", "services/notifier/notify/tail.go",
		"if err != nil || creation == n.Note() {", `if err != nil || creation != "" {`, "services/notifier", "TestLostEventStreamIsFilledAgain"},

	{"G6", "workers look into the database when no signal comes", "pkg/worker/search.go",
		"if !s.intake.idle(searchEvery - searchEvery/10) {", "if true {", "pkg/worker", "TestWorkGoesOnWithoutNATSInOrderOfPriority"},

	{"G7", "the database's time is estimated by the monotonic clock", store + "/clock.go",
		"return c.anchor.server.Add(elapsed),", "return c.anchor.server.Add(2 * elapsed),", store, "TestClockFollowsTheMonotonicClock"},
	{"G7", "leases in the far future are pulled in after the database's clock went back", store + "/mend.go",
		"limit := earliest(later(\"$$NOW\", lease.Milliseconds()), \"$deadlineAt\")", "limit := any(\"$leaseUntil\")", store, "TestMend"},
	{"G7", "nothing is revived for one lease after the database was away", "services/reaper/reap/watch.go",
		"w.resumeAt = from.Add(w.lease)", "w.resumeAt = from", "services/reaper/reap", "TestDisturbancesReviveNothingForOneLease"},

	{"G8", "a cancel is a compare-and-set on the state that was read", store + "/cancel.go",
		`guard := bson.D{{Key: "_id", Value: t.ID}, {Key: "state", Value: string(t.State)}}`, `guard := bson.D{{Key: "_id", Value: t.ID}}`,
		store, "TestCancelRace"},
	{"G8", "a cancel is asked for once", store + "/cancel.go",
		`, bson.E{Key: "cancelRequestedAt", Value: nil})`, ")", store, "TestCancelIsAskedForOnce"},
	{"G8", "no move leads out of a terminal state", "internal/task/transition.go",
		"	{Pending, Running, ReasonClaimed, MoverWorker},", "	{Pending, Running, ReasonClaimed, MoverWorker},\n	{Success, Pending, ReasonRetry, MoverWorker},",
		"internal/task", "TestTableIsWellFormed"},

	{"G9", "a field that ax does not know is refused", "pkg/events/decode.go",
		"return unknownField(prefix, name, known.names)", "return nil", "pkg/events", "TestSubmitIsRefused"},
	{"G9", "the same id with another body is a conflict", store + "/insert.go",
		"status[at] = task.Conflict", "status[at] = task.Duplicate", "services/submitter/submit", "TestSameIDAgain"},

	{"G10", "a finished task stands in no index of the hot queries", store + "/index.go",
		`has("checkAt"), false},`, "nil, false},", store, "TestHotQueriesStayFlat"},

	{"G11", "a worker asks for no more signals than it has room for", "pkg/worker/intake.go",
		"return max(0, min(total, own)+q.ahead(k))", "return max(1000, min(total, own)+q.ahead(k))", "pkg/worker", "TestUrgentLaneFirstAndOthersKeepAShare"},
	{"G11", "messages on their way into the database are bounded in bytes", "internal/natsbus/submit.go",
		"semaphore.NewWeighted(submitBufferBytes)", "semaphore.NewWeighted(100 * submitBufferBytes)", "internal/natsbus", "TestSubmitHoldsABoundedNumberOfBytes"},

	{"G12", "a lock is taken only when it is free, over, or one's own", store + "/lock.go",
		"free := bson.D{{Key: \"$or\", Value: bson.A{", "free := bson.D{{Key: \"$or\", Value: bson.A{true,", store, "TestLockRace"},
	{"G12", "work ends before its lock does", "internal/lead/lead.go",
		"case errors.Is(err, task.ErrNotLeader), !time.Now().Before(fence):", "case false:", "internal/lead", "TestWorkEndsBeforeTheLockDoes"},
}
