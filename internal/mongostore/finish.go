package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/ax-scheduler/ax/internal/task"
)

// finishParallel is how many commands of one Finish are under way at a time.
const finishParallel = 4

// Finish records reports of executions, each exactly once. For each report the answer is nil (it is recorded, by this call or by
// an earlier one of the same report) or [task.ErrLeaseLost] (the execution is no longer valid; nothing was changed).
//
// The second error means that the outcome of the whole batch is unknown: sending the same reports again is right, because a report
// that was recorded is found in the task's history.
//
// A success whose result is over [task.MaxResult] or is not JSON is recorded as a rejected result. What goes back to pending
// becomes cancelled where somebody asked for that.
func (s *Store) Finish(ctx context.Context, outcomes []task.Outcome) ([]error, error) {
	groups, err := groupReports(outcomes)
	if err != nil {
		return nil, fmt.Errorf("finish: %w", err)
	}
	answers := make([]error, len(outcomes))
	var commands errgroup.Group // not tied to a context: one that fails must not leave the others unknown as well
	commands.SetLimit(finishParallel)
	var single []*report
	for _, g := range groups {
		if len(g) == 1 {
			single = append(single, g[0])
			continue
		}
		commands.Go(func() error { return s.finishGroup(ctx, g, answers) })
	}
	for _, part := range splitReports(single) {
		commands.Go(func() error { return s.finishSingle(ctx, part, answers) })
	}
	if err := commands.Wait(); err != nil {
		return nil, fmt.Errorf("finish: %w: %w", task.ErrUnknownOutcome, err)
	}
	return answers, nil
}

// finishGroup records reports of one claim with the same kind of end by one command.
func (s *Store) finishGroup(ctx context.Context, g []*report, answers []error) error {
	update, err := reportUpdate(g)
	if err != nil {
		return err
	}
	result, err := s.tasks.UpdateMany(ctx, reportGuard(g), update)
	if err != nil {
		return err
	}
	return s.answer(ctx, g, result.MatchedCount, answers)
}

// finishSingle records reports that have nothing in common, one update each, which the driver may send again by itself.
func (s *Store) finishSingle(ctx context.Context, reports []*report, answers []error) error {
	models := make([]mongo.WriteModel, len(reports))
	for i, r := range reports {
		one := []*report{r}
		update, err := reportUpdate(one)
		if err != nil {
			return err
		}
		models[i] = mongo.NewUpdateOneModel().SetFilter(reportGuard(one)).SetUpdate(update)
	}
	result, err := s.tasks.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return err
	}
	return s.answer(ctx, reports, result.MatchedCount, answers)
}

// reportGuard lets a report change only the execution that it is about. claim refuses the report of an execution that was revived,
// even when the same worker runs the task again; state refuses a second report of the same one.
func reportGuard(g []*report) bson.D {
	return bson.D{
		{Key: "_id", Value: idCondition(g)},
		{Key: "claim", Value: is(g[0].o.Claim)},
		{Key: "state", Value: is(string(task.Running))},
	}
}

func idCondition(g []*report) any {
	if len(g) == 1 {
		return g[0].o.ID
	}
	return in(reportIDs(g))
}

func reportIDs(g []*report) []string {
	ids := make([]string, len(g))
	for i, r := range g {
		ids[i] = r.o.ID
	}
	return ids
}

// answer tells what became of each report. When the command matched all, all are recorded; else the history of each task says
// whether its report was recorded, now or by an earlier call whose reply was lost.
func (s *Store) answer(ctx context.Context, reports []*report, matched int64, answers []error) error {
	if matched == int64(len(reports)) {
		return nil
	}
	cursor, err := s.tasks.Find(ctx, bson.D{{Key: "_id", Value: in(reportIDs(reports))}}, options.Find().
		SetProjection(bson.D{{Key: "history", Value: 1}}).SetBatchSize(int32(len(reports)+1)))
	if err != nil {
		return fmt.Errorf("look up reports: %w", err)
	}
	found, err := decodeAll(ctx, cursor)
	if err != nil {
		return fmt.Errorf("look up reports: %w", err)
	}
	byID := make(map[string]*task.Task, len(found))
	for _, t := range found {
		byID[t.ID] = t
	}
	for _, r := range reports {
		if t := byID[r.o.ID]; t == nil || !r.recordedIn(t.History) {
			answers[r.place] = task.ErrLeaseLost
		}
	}
	return nil
}

// recordedIn reports whether the history holds the end of this execution as reported. An end by somebody else (the reaper), or by
// this worker for another reason (an earlier report of something else), is not this report.
func (r *report) recordedIn(history []task.Entry) bool {
	for _, e := range history {
		if e.From == task.Running && e.To != task.Running && e.Claim == r.o.Claim && e.By == r.by {
			return e.Reason == r.reason || r.to == task.Pending && e.Reason == task.ReasonCancelled
		}
	}
	return false
}

var errNoTask = errors.New("a failed attempt needs the task as claimed: its policy decides what follows")
