package mongostore

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

func acquire(t *testing.T, s *Store, owner string) task.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), "leader", owner, time.Minute)
	require.NoError(t, err)
	return l
}

// patchIn changes documents of a small collection behind the store's back.
func patchIn(t *testing.T, s *Store, collection, id string, set bson.D) {
	t.Helper()
	r, err := s.hotDB.Collection(collection).UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: set}})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.MatchedCount)
}

// endLock lets a lock's time be over.
func endLock(t *testing.T, s *Store) {
	t.Helper()
	now, _, err := s.ServerTime(t.Context())
	require.NoError(t, err)
	patchIn(t, s, locksCollection, "leader", bson.D{{Key: "until", Value: now.Add(-time.Millisecond)}})
}

func TestLockHasOneHolder(t *testing.T) {
	s := openStore(t)
	a := acquire(t, s, "a")
	require.Equal(t, task.Lease{Name: "leader", Owner: "a", Held: true, Epoch: 1, Until: a.Until}, a)
	now, bound, err := s.Now()
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(time.Minute), a.Until, bound+5*time.Second)

	b := acquire(t, s, "b")
	require.Equal(t, task.Lease{Name: "leader", Owner: "a", Epoch: 1, Until: a.Until}, b, "the answer tells who holds it, and until when")

	other, err := s.Acquire(t.Context(), "another lock", "b", time.Minute)
	require.NoError(t, err)
	require.True(t, other.Held)

	// The holder's own second request is a new term: what an earlier one of it still writes is refused.
	again := acquire(t, s, "a")
	require.True(t, again.Held)
	require.EqualValues(t, 2, again.Epoch)
	_, err = s.Renew(t.Context(), a, time.Minute, "")
	require.ErrorIs(t, err, task.ErrNotLeader)
}

func TestLockPassesOnWhenItsTimeIsOver(t *testing.T) {
	s := openStore(t)
	a := acquire(t, s, "a")
	a, err := s.Renew(t.Context(), a, time.Minute, "$note of a")
	require.NoError(t, err)
	endLock(t, s)

	// Nobody has taken it: the holder that was slow goes on.
	a, err = s.Renew(t.Context(), a, time.Minute, "$note of a")
	require.NoError(t, err)
	require.True(t, a.Held)
	require.False(t, acquire(t, s, "b").Held)

	endLock(t, s)
	b := acquire(t, s, "b")
	require.True(t, b.Held)
	require.EqualValues(t, 2, b.Epoch)
	require.Equal(t, "$note of a", b.Note, "what the former holder left")

	_, err = s.Renew(t.Context(), a, time.Hour, "late")
	require.ErrorIs(t, err, task.ErrNotLeader)
	require.NoError(t, s.Release(t.Context(), a), "giving up what has passed on is no error")
	for _, foreign := range []task.Lease{{Name: "leader", Owner: "b", Epoch: 1}, {Name: "leader", Owner: "a", Epoch: 2}, {Name: "none", Owner: "b", Epoch: 2}} {
		_, err = s.Renew(t.Context(), foreign, time.Hour, "late")
		require.ErrorIs(t, err, task.ErrNotLeader)
		require.NoError(t, s.Release(t.Context(), foreign))
	}
	require.Equal(t, task.Lease{Name: "leader", Owner: "b", Epoch: 2, Until: b.Until, Note: "$note of a"}, acquire(t, s, "c"), "still b's, unchanged")
}

func TestLockIsReleased(t *testing.T) {
	s := openStore(t)
	a := acquire(t, s, "a")
	a, err := s.Renew(t.Context(), a, time.Minute, "left")
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), a))
	_, err = s.Renew(t.Context(), a, time.Minute, "late")
	require.ErrorIs(t, err, task.ErrNotLeader)
	b := acquire(t, s, "b")
	require.True(t, b.Held)
	require.EqualValues(t, 2, b.Epoch)
	require.Equal(t, "left", b.Note)
}

// However many ask at once, for a lock that does not exist yet, is over or was released, one gets it; the others get an answer, not
// an error.
func TestLockRace(t *testing.T) {
	s := openStore(t)
	const contenders = 50
	var last int64
	for round := range 6 {
		leases := make([]task.Lease, contenders)
		var all sync.WaitGroup
		for i := range contenders {
			all.Go(func() {
				l, err := s.Acquire(t.Context(), "leader", fmt.Sprintf("%d of %d", i, round), time.Minute)
				if err != nil {
					t.Errorf("acquire: %v", err)
				}
				leases[i] = l
			})
		}
		all.Wait()
		var held task.Lease
		for _, l := range leases {
			if l.Held {
				require.False(t, held.Held, "two holders: %v and %v", held, l)
				held = l
			}
		}
		require.True(t, held.Held)
		require.Equal(t, last+1, held.Epoch, "each term has the next epoch")
		last = held.Epoch
		for _, l := range leases {
			require.Equal(t, held.Owner, l.Owner)
		}
		if round%2 == 0 {
			require.NoError(t, s.Release(t.Context(), held))
		} else {
			endLock(t, s)
		}
	}
}

// A holder that renews is never displaced by those who ask, and never told that it was.
func TestLockIsRenewedUnderContention(t *testing.T) {
	s := openStore(t)
	held := acquire(t, s, "a")
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if l, err := s.Acquire(t.Context(), "leader", fmt.Sprintf("b%d", i), time.Minute); err != nil || l.Held {
					t.Errorf("acquire: %v %v", l, err)
					return
				}
			}
		})
	}
	for i := range 100 {
		var err error
		held, err = s.Renew(t.Context(), held, time.Minute, fmt.Sprint(i))
		if err != nil || !held.Held {
			t.Errorf("renew: %v %v", held, err)
			break
		}
	}
	close(done)
	all.Wait()
	require.EqualValues(t, 1, held.Epoch)
	require.Equal(t, "99", held.Note)
}

// An acquisition whose reply is lost is found by asking again, without waiting for the lock's end.
func TestLockWhoseReplyIsLost(t *testing.T) {
	cutter := &replyCutter{}
	s := openStore(t, func(o *Options) { o.adjust = cutter.dial })
	cutter.arm("update")
	l, err := s.Acquire(t.Context(), "leader", "a", time.Minute)
	require.True(t, cutter.fired())
	if err != nil { // else the driver has asked again by itself
		l = acquire(t, s, "a")
	}
	require.True(t, l.Held)
	require.False(t, acquire(t, s, "b").Held)
}
