package submit

import (
	"fmt"
	"slices"
	"time"

	"github.com/ax-scheduler/ax/internal/task"
)

// without is what follows when no process of a service is there, or none of them leads.
var without = map[string]string{
	"submitter":  "submissions wait in NATS",
	"dispatcher": "workers look for tasks in the database, so they start later",
	"reaper":     "tasks of workers that died stay with them, and nothing expires",
	"notifier":   "no events are published, and no dead letters written",
	"cron":       "schedules do not fire",
}

// attention says what is not as it should be, by what the processes of services told of themselves up to now. The submitter that
// answers is one of them.
func attention(services []task.ServiceInfo, now time.Time) []string {
	sentences := []string{}
	for _, name := range task.Services {
		there, leads, seen := 0, false, time.Time{}
		for _, s := range services {
			if s.Service != name {
				continue
			}
			if s.SeenAt.After(seen) {
				seen = s.SeenAt
			}
			if now.Sub(s.SeenAt) > task.SeenWithin {
				continue
			}
			there++
			leads = leads || s.Leads
			for _, c := range s.Conditions {
				sentences = append(sentences, fmt.Sprintf("%s: %s", s.ID, c))
			}
		}
		switch {
		case there == 0 && seen.IsZero():
			sentences = append(sentences, fmt.Sprintf("no %s is there: %s", name, without[name]))
		case there == 0:
			sentences = append(sentences, fmt.Sprintf("no %s has been seen for %v: %s", name, now.Sub(seen).Round(time.Second), without[name]))
		case !leads && name != "submitter":
			sentences = append(sentences, fmt.Sprintf("no %s leads: %s", name, without[name]))
		}
	}
	slices.Sort(sentences)
	return sentences
}

// taken tells whether a worker of the type is there.
func taken(taskType string, workers []task.WorkerInfo, now time.Time) bool {
	return slices.ContainsFunc(workers, func(w task.WorkerInfo) bool {
		return now.Sub(w.SeenAt) <= task.SeenWithin && slices.Contains(w.Types, taskType)
	})
}
