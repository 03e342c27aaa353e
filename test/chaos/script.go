package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ax-scheduler/ax/internal/localstack"
)

// What the whole system is made of.
const (
	replicas = 2 // of every service
	workers  = 3
	lease    = 5 * time.Second
	lockTTL  = 4 * time.Second // of a leader
)

// kind is what a fault does.
type kind string

const (
	kill     kind = "kill"      // SIGKILL, started again after a while
	pause    kind = "pause"     // SIGSTOP for longer than a lease, then SIGCONT
	cut      kind = "cut"       // the connection is refused and what is open is closed
	slow     kind = "slow"      // what passes the connection is late, by up to a second
	halfOpen kind = "half-open" // one direction of the connection swallows everything, and neither side is told
	narrow   kind = "narrow"    // 1 KB/s passes the connection each way: to NATS the process is a slow consumer
	full     kind = "full"      // NATS comes back with a store that is full, and later with room again
	wipe     kind = "wipe"      // the store of NATS is deleted
	drop     kind = "drop"      // the signals that wait for workers are deleted
	shuffle  kind = "shuffle"   // signals of known tasks are sent again, twice, in any order
)

// leader in a target stands for the replica that leads when the fault strikes.
const leader = "leader"

// fault is one line of the script.
type fault struct {
	at     time.Duration // since the script began; a track that is late is late with all that follows
	lasts  time.Duration
	kind   kind
	target string // nats, mongo, signals, <service>/<replica>, <service>/leader, worker/<n>; of a connection also -> and its other end
	up     bool   // of half-open: what is swallowed is what the process sends
}

func (f fault) String() string {
	way := ""
	if f.kind == halfOpen {
		way = " (what it is sent)"
		if f.up {
			way = " (what it sends)"
		}
	}
	return fmt.Sprintf("%7.1fs  %-9s %s%s, %.1fs", f.at.Seconds(), f.kind, f.target, way, f.lasts.Seconds())
}

// script is what happens in a run. It is a function of the seed and the time alone.
type script struct {
	seed   uint64
	lasts  time.Duration
	tracks map[string][]fault // of each track one fault at a time, side by side with the other tracks
	clocks map[string]int     // seconds by which each process's clock is off
}

// trackNames are the tracks in the order in which they are printed.
var trackNames = []string{"processes", "connections", "stores"}

// newScript writes the script. Each track deals its faults from a deck that is shuffled anew when it is used up, so that a
// run that is long enough has had them all.
func newScript(seed uint64, lasts time.Duration) script {
	s := script{seed: seed, lasts: lasts, tracks: map[string][]fault{}, clocks: map[string]int{}}
	for i, name := range processNames() {
		s.clocks[name] = []int{0, 3600, -3600}[(i+int(seed%3))%3]
	}
	for i, track := range trackNames {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		var deck []fault
		// The first second is for the first tasks, and the last fault ends with the script.
		for at := time.Second; ; {
			if len(deck) == 0 {
				deck = decks[track]()
				random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			}
			f := deck[0]
			deck = deck[1:]
			f.at = at
			least, most := f.kind.bounds()
			f.lasts = (least + time.Duration(random.Int64N(int64(most-least)+1))).Round(100 * time.Millisecond)
			if f.at+f.lasts > lasts {
				break
			}
			s.tracks[track] = append(s.tracks[track], f)
			least, most = quietTimes(track)
			at += f.lasts + (least + time.Duration(random.Int64N(int64(most-least)))).Round(100*time.Millisecond)
		}
	}
	return s
}

// quietTimes is how long nothing happens on a track between its faults. That is longer between faults of stores: for one lease after
// the database was away the reaper revives nothing, and a worker that goes on beyond its time meets nobody.
func quietTimes(track string) (least, most time.Duration) {
	if track == "stores" {
		return lease + time.Second, 3 * lease
	}
	return 500 * time.Millisecond, 2500 * time.Millisecond
}

// bounds is how long such a fault lasts.
func (k kind) bounds() (least, most time.Duration) {
	switch k {
	case pause: // well beyond a lease and a leader's lock, so that somebody else has taken over when it ends
		return lease + 3*time.Second, 2*lease + 2*time.Second
	case kill, wipe:
		return 500 * time.Millisecond, 5 * time.Second
	case drop, shuffle:
		return 100 * time.Millisecond, time.Second
	}
	return time.Second, lease + 5*time.Second
}

// decks hold each fault as often as it is to be met, by track.
var decks = map[string]func() []fault{
	"processes": func() []fault {
		var deck []fault
		for _, service := range localstack.ServiceNames {
			for _, k := range []kind{kill, pause} {
				deck = append(deck, fault{kind: k, target: service + "/" + leader})
			}
		}
		for i := range workers {
			for _, k := range []kind{kill, pause, pause} {
				deck = append(deck, fault{kind: k, target: fmt.Sprintf("worker/%d", i)})
			}
		}
		return deck
	},
	"connections": func() []fault {
		var deck []fault
		for i, name := range processNames() {
			for j, k := range []kind{cut, slow, halfOpen, narrow} {
				other := "mongo"
				if (i+j)%2 == 0 && usesNATS(name) {
					other = "nats"
				}
				deck = append(deck, fault{kind: k, target: name + "->" + other, up: (i/2+j)%2 == 0})
			}
		}
		return deck
	},
	"stores": func() []fault {
		return []fault{{kind: kill, target: "nats"}, {kind: pause, target: "nats"}, {kind: wipe, target: "nats"}, {kind: full, target: "nats"}, {kind: kill, target: "mongo"}, {kind: pause, target: "mongo"},
			{kind: drop, target: "signals"}, {kind: drop, target: "signals"}, {kind: shuffle, target: "signals"}, {kind: shuffle, target: "signals"}}
	},
}

// processNames are the replicas of the services and the workers.
func processNames() []string {
	var names []string
	for _, service := range localstack.ServiceNames {
		for i := range replicas {
			names = append(names, fmt.Sprintf("%s/%d", service, i))
		}
	}
	for i := range workers {
		names = append(names, fmt.Sprintf("worker/%d", i))
	}
	return names
}

// usesNATS tells the processes that talk to NATS from those that need the database alone.
func usesNATS(process string) bool {
	service, _, _ := strings.Cut(process, "/")
	return service != "reaper" && service != "cron"
}

// print writes the script as it was made.
func (s script) print(out io.Writer) {
	fmt.Fprintf(out, "seed %d, faults for %v\n", s.seed, s.lasts)
	for _, name := range processNames() {
		if off := s.clocks[name]; off != 0 {
			fmt.Fprintf(out, "  the clock of %s is %+d s off\n", name, off)
		}
	}
	var all []fault
	for _, track := range trackNames {
		all = append(all, s.tracks[track]...)
	}
	slices.SortStableFunc(all, func(a, b fault) int { return int(a.at - b.at) })
	for _, f := range all {
		fmt.Fprintln(out, " ", f)
	}
}
