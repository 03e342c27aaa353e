package mongostore

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/ax-scheduler/ax/internal/task"
)

func beginOnce(t *testing.T, s *Store, execution string) task.Once {
	t.Helper()
	o, err := s.BeginOnce(t.Context(), "charge:7", execution, time.Minute, time.Hour)
	require.NoError(t, err)
	return o
}

func completeOnce(t *testing.T, s *Store, execution, value string) error {
	t.Helper()
	return s.CompleteOnce(t.Context(), "charge:7", execution, json.RawMessage(value), time.Hour)
}

func onceStored(t *testing.T, s *Store) (d struct {
	Owner string    `bson:"owner"`
	Lease time.Time `bson:"leaseUntil"`
	Until time.Time `bson:"until"`
}) {
	t.Helper()
	require.NoError(t, s.hotDB.Collection(onceCollection).FindOne(t.Context(), bson.D{{Key: "_id", Value: "charge:7"}}).Decode(&d))
	return d
}

// endOnce lets the time of a reservation be over, as the death of its holder does in the end.
func endOnce(t *testing.T, s *Store) {
	t.Helper()
	patchIn(t, s, onceCollection, "charge:7", bson.D{{Key: "leaseUntil", Value: serverNow(t, s).Add(-time.Second)}})
}

func TestOnceIsDoneByOne(t *testing.T) {
	s := openStore(t)
	require.Equal(t, task.Once{Mine: true}, beginOnce(t, s, "c1:t1"))
	require.Equal(t, task.Once{}, beginOnce(t, s, "c2:t2"), "another is at it")
	other, err := s.BeginOnce(t.Context(), "charge:8", "c2:t2", time.Minute, time.Hour)
	require.NoError(t, err)
	require.True(t, other.Mine, "each key for itself")

	// The value comes back as it was, also where it could be taken for an expression.
	require.NoError(t, completeOnce(t, s, "c1:t1", `{"id": "$owner", "n": 1.50}`))
	for _, execution := range []string{"c1:t1", "c2:t2"} {
		require.Equal(t, task.Once{Done: true, Value: json.RawMessage(`{"id": "$owner", "n": 1.50}`)}, beginOnce(t, s, execution))
	}
	require.WithinDuration(t, serverNow(t, s).Add(time.Hour), onceStored(t, s).Until, 10*time.Second, "it is remembered for as long as was asked")
}

func TestOnceWithoutAValue(t *testing.T) {
	s := openStore(t)
	beginOnce(t, s, "c1:t1")
	require.NoError(t, s.CompleteOnce(t.Context(), "charge:7", "c1:t1", nil, time.Hour))
	require.Equal(t, task.Once{Done: true}, beginOnce(t, s, "c2:t2"))
}

// A holder that asks again keeps the key and gets a new lease: that is how it holds on while the work takes long.
func TestOnceIsRenewed(t *testing.T) {
	s := openStore(t)
	beginOnce(t, s, "c1:t1")
	endOnce(t, s)
	require.True(t, beginOnce(t, s, "c1:t1").Mine)
	require.WithinDuration(t, serverNow(t, s).Add(time.Minute), onceStored(t, s).Lease, 10*time.Second)
	require.False(t, beginOnce(t, s, "c2:t2").Mine)
}

// The holder died: when its lease is over another one gets the key, and what the former one still says is refused.
func TestOncePassesOnWhenItsLeaseIsOver(t *testing.T) {
	s := openStore(t)
	beginOnce(t, s, "c1:t1")
	endOnce(t, s)
	require.True(t, beginOnce(t, s, "c2:t2").Mine)
	require.False(t, beginOnce(t, s, "c1:t1").Mine)

	require.ErrorIs(t, completeOnce(t, s, "c1:t1", `"late"`), task.ErrLeaseLost)
	require.NoError(t, s.AbandonOnce(t.Context(), "charge:7", "c1:t1"))
	require.Equal(t, "c2:t2", onceStored(t, s).Owner, "still the other's")
	require.NoError(t, completeOnce(t, s, "c2:t2", `"mine"`))
	require.ErrorIs(t, completeOnce(t, s, "c1:t1", `"late"`), task.ErrLeaseLost)
	require.Equal(t, task.Once{Done: true, Value: json.RawMessage(`"mine"`)}, beginOnce(t, s, "c1:t1"))
}

// A lease that is over and that nobody has taken still lets its holder finish: nothing was done twice.
func TestOnceIsCompletedLate(t *testing.T) {
	s := openStore(t)
	beginOnce(t, s, "c1:t1")
	endOnce(t, s)
	require.NoError(t, completeOnce(t, s, "c1:t1", `1`))
	require.True(t, beginOnce(t, s, "c2:t2").Done)
}

func TestOnceThatIsDoneStaysSo(t *testing.T) {
	s := openStore(t)
	beginOnce(t, s, "c1:t1")
	require.NoError(t, completeOnce(t, s, "c1:t1", `"first"`))
	require.NoError(t, completeOnce(t, s, "c1:t1", `"second"`), "the reply to the first was lost: it is recorded")
	require.ErrorIs(t, completeOnce(t, s, "c2:t2", `"other"`), task.ErrLeaseLost)
	for _, execution := range []string{"c1:t1", "c2:t2"} {
		require.NoError(t, s.AbandonOnce(t.Context(), "charge:7", execution))
	}
	endOnce(t, s) // a lease means nothing any more
	before := onceStored(t, s)
	require.Equal(t, task.Once{Done: true, Value: json.RawMessage(`"first"`)}, beginOnce(t, s, "c2:t2"))
	require.Equal(t, before, onceStored(t, s), "who did it, and until when it is remembered")
}

func TestOnceIsGivenBack(t *testing.T) {
	s := openStore(t)
	beginOnce(t, s, "c1:t1")
	require.NoError(t, s.AbandonOnce(t.Context(), "charge:7", "c2:t2"), "of another: nothing happens")
	require.False(t, beginOnce(t, s, "c2:t2").Mine)
	require.NoError(t, s.AbandonOnce(t.Context(), "charge:7", "c1:t1"))
	require.True(t, beginOnce(t, s, "c2:t2").Mine, "at once")
	require.ErrorIs(t, completeOnce(t, s, "c1:t1", `1`), task.ErrLeaseLost)
	require.NoError(t, s.AbandonOnce(t.Context(), "charge:7", "c2:t2"))
	require.ErrorIs(t, completeOnce(t, s, "c2:t2", `1`), task.ErrLeaseLost, "nobody holds it")
}

// However many ask at the same moment, for a key that is new, was given back, or whose holder died, one gets it.
func TestOnceRace(t *testing.T) {
	s := openStore(t)
	const contenders = 40
	for round := range 6 {
		answers := make([]task.Once, contenders)
		var all sync.WaitGroup
		for i := range contenders {
			all.Go(func() {
				o, err := s.BeginOnce(t.Context(), "charge:7", fmt.Sprintf("%d:%d", round, i), time.Minute, time.Hour)
				if err != nil {
					t.Errorf("begin: %v", err)
				}
				answers[i] = o
			})
		}
		all.Wait()
		holder := -1
		for i, o := range answers {
			if o.Mine {
				require.Negative(t, holder, "two holders: %d and %d", holder, i)
				holder = i
			}
		}
		require.GreaterOrEqual(t, holder, 0)
		require.Equal(t, fmt.Sprintf("%d:%d", round, holder), onceStored(t, s).Owner)
		if round%2 == 0 {
			require.NoError(t, s.AbandonOnce(t.Context(), "charge:7", fmt.Sprintf("%d:%d", round, holder)))
		} else {
			endOnce(t, s)
		}
	}
}

// A reservation whose reply is lost is found by asking again, not waited for.
func TestOnceWhoseReplyIsLost(t *testing.T) {
	cutter := &replyCutter{}
	s := openStore(t, func(o *Options) { o.adjust = cutter.dial })
	cutter.arm("update")
	o, err := s.BeginOnce(t.Context(), "charge:7", "c1:t1", time.Minute, time.Hour)
	require.True(t, cutter.fired())
	if err != nil { // else the driver has asked again by itself
		o = beginOnce(t, s, "c1:t1")
	}
	require.True(t, o.Mine)
	require.False(t, beginOnce(t, s, "c2:t2").Mine)
}
