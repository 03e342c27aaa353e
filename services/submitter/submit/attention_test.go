package submit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ax-scheduler/ax/internal/task"
)

func TestAttention(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := func(change func(*task.ServiceInfo)) []task.ServiceInfo {
		var services []task.ServiceInfo
		for _, name := range task.Services {
			s := task.ServiceInfo{ID: name + "/a", Service: name, Leads: name != "submitter", SeenAt: now.Add(-task.SeenWithin)}
			change(&s)
			services = append(services, s)
		}
		return services
	}
	require.Empty(t, attention(all(func(*task.ServiceInfo) {}), now))
	require.Len(t, attention(nil, now), len(task.Services))
	gone := all(func(s *task.ServiceInfo) {
		if s.Service == "reaper" {
			s.SeenAt, s.Conditions = now.Add(-2*time.Minute), []string{"what it said last counts no more"}
		}
	})
	require.Equal(t, []string{"no reaper has been seen for 2m0s: " + without["reaper"]}, attention(gone, now))
	headless := all(func(s *task.ServiceInfo) { s.Leads = s.Service == "dispatcher" || s.Service == "cron" })
	require.Equal(t, []string{"no notifier leads: " + without["notifier"], "no reaper leads: " + without["reaper"]}, attention(headless, now))
	for _, name := range task.Services {
		require.NotEmpty(t, without[name])
	}
}
