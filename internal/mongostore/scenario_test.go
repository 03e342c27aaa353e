package mongostore

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/ax-scheduler/ax/internal/ledger"
	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
)

const (
	contends  = "AX_TEST_CONTENDS" // JSON of a contender: this process is one
	contested = 2 * time.Second    // until when the lock of a dead holder is held
)

type contender struct {
	URI, Database, Name string
	Crash               int // its so manieth hold is its last, in the middle of which it dies
}

// hold is one line of a contender's output: it had the lock under an epoch from one moment of the machine's clock to another.
type hold struct {
	Epoch    int64
	From, To int64 // To is zero when it died
	Err      string
}

// contend takes the lock again and again, until it is told to stop by the end of its input.
func contend(c contender) error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		stop()
	}()
	s, err := Open(ctx, Options{URI: c.URI, Database: c.Database})
	if err != nil {
		return err
	}
	defer s.Close(context.Background())
	var mu sync.Mutex
	var holds int
	say := func(h hold) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(os.Stdout).Encode(h)
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				l, err := s.Acquire(ctx, "leader", fmt.Sprintf("%s-%d", c.Name, i), contested)
				if err != nil && ctx.Err() == nil {
					say(hold{Err: err.Error()})
				}
				if err != nil || !l.Held {
					<-time.After(time.Duration(15+5*i) * time.Millisecond)
					continue
				}
				h := hold{Epoch: l.Epoch, From: ledger.Now()}
				mu.Lock()
				holds++
				dies := holds == c.Crash
				mu.Unlock()
				if dies {
					say(h)
					os.Exit(0)
				}
				<-time.After(5 * time.Millisecond)
				h.To = ledger.Now()
				say(h)
				if err := s.Release(context.WithoutCancel(ctx), l); err != nil {
					say(hold{Err: err.Error()})
				}
			}
		})
	}
	all.Wait()
	return nil
}

func TestScenarioM10ALockHasOneHolder(t *testing.T) {
	s := openStore(t)
	var mu sync.Mutex
	var holds []hold
	begin := func(name string, crash int) (stop func()) {
		what, err := json.Marshal(contender{URI: stacktest.Mongo(t).URI(), Database: s.tasks.Database().Name(), Name: name, Crash: crash})
		require.NoError(t, err)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), contends+"="+string(what))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var reader sync.WaitGroup
		reader.Go(func() {
			for d := json.NewDecoder(out); ; {
				var h hold
				if d.Decode(&h) != nil {
					return
				}
				mu.Lock()
				holds = append(holds, h)
				mu.Unlock()
			}
		})
		return func() {
			_ = in.Close()
			reader.Wait()
			require.NoError(t, cmd.Wait())
		}
	}
	var stops []func()
	for i := range 5 {
		stops = append(stops, begin(fmt.Sprint("process-", i), 0))
	}
	for i := range 3 { // and three that die while they hold it
		stops = append(stops, begin(fmt.Sprint("mortal-", i), 3*(i+1)))
	}
	died := func() (n int) {
		for _, h := range holds {
			if h.Err == "" && h.To == 0 {
				n++
			}
		}
		return n
	}
	stacktest.Eventually(t, time.Minute, "the lock changed hands often, in spite of the dead", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(holds) >= 150 && died() == 3 && holds[len(holds)-1].To > 0
	})
	for _, stop := range stops {
		stop()
	}
	slices.SortFunc(holds, func(a, b hold) int { return int(a.From - b.From) })
	for i, h := range holds {
		require.Empty(t, h.Err)
		if i == 0 {
			continue
		}
		before := holds[i-1]
		require.Greater(t, h.Epoch, before.Epoch, "epochs rise")
		require.Greater(t, h.From, before.To, "holds do not overlap")
		if before.To == 0 {
			require.GreaterOrEqual(t, time.Duration(h.From-before.From), contested/2, "it is the dead one's for a while")
			require.Less(t, time.Duration(h.From-before.From), contested+2*time.Second, "and no longer")
		}
	}
}

func TestScenarioE01AReportWritesItsTasksAlone(t *testing.T) {
	var mu sync.Mutex
	writes := map[string]int{} // by command and collection
	s := openStore(t, func(o *Options) {
		o.adjust = func(c *options.ClientOptions) {
			c.SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
				switch e.CommandName {
				case "insert", "update", "delete", "findAndModify", "bulkWrite":
					var command bson.D
					if bson.Unmarshal(e.Command, &command) == nil {
						mu.Lock()
						writes[fmt.Sprint(e.CommandName, " ", command[0].Value)]++
						mu.Unlock()
					}
				}
			}})
		}
	})
	const workers, each = 64, 5
	tasks := insertTasks(t, s, workers*each)
	mu.Lock()
	clear(writes)
	mu.Unlock()
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			mine := tasks[w*each : (w+1)*each]
			claimed, err := s.Claim(t.Context(), task.ClaimRequest{IDs: idsOf(mine), Claim: newClaim(), Worker: "w1", Lease: task.DefaultLease})
			if err != nil || len(claimed) != each {
				t.Errorf("claim: %d, %v", len(claimed), err)
				return
			}
			outcomes := make([]task.Outcome, each)
			for i, tk := range claimed {
				outcomes[i] = outcomeOf(tk, []task.OutcomeKind{task.Succeeded, task.FailedAttempt, task.FailedForGood}[i%3])
			}
			answers, err := s.Finish(t.Context(), outcomes)
			if err != nil {
				t.Errorf("finish: %v", err)
			}
			for _, err := range answers {
				if err != nil {
					t.Errorf("finish: %v", err)
				}
			}
		})
	}
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, writes, 1, "only the tasks themselves are written: %v", writes)
	require.LessOrEqual(t, writes["update "+TasksCollection], workers*4, "one claim, and one report of each kind: %v", writes)
}
