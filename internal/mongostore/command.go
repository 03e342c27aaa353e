package mongostore

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

// The commands of a task's way through the store, as Claim and Finish send them: the bench measures what the bare driver can do
// with them, and must not measure others.

// ClaimCommand is the update of a claim.
func ClaimCommand(r task.ClaimRequest, now time.Time, bound time.Duration) (filter bson.D, update any, err error) {
	update, err = claimUpdate(r)
	return claimGuard(r.IDs, now, bound), update, err
}

// ResolveCommand is the find that follows a claim which won all of its tasks. No projection: nil.
func (s *Store) ResolveCommand(r task.ClaimRequest) (filter, projection bson.D) {
	return s.wonBy(r.Claim, r.IDs)
}

// FinishCommand is the update that records reports of one claim with the same kind of end.
func FinishCommand(outcomes []task.Outcome) (filter bson.D, update any, err error) {
	groups, err := groupReports(outcomes)
	if err != nil {
		return nil, nil, err
	}
	if len(groups) != 1 {
		return nil, nil, fmt.Errorf("these %d reports take %d commands, not one", len(outcomes), len(groups))
	}
	update, err = reportUpdate(groups[0])
	return reportGuard(groups[0]), update, err
}
