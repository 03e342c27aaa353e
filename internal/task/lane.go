package task

// Priorities run from 0, the most urgent, to 9.
const (
	MinPriority     = 0
	MaxPriority     = 9
	DefaultPriority = 5
)

// Lane groups priorities for delivery: a worker empties high before normal before low, and the lower lanes keep a share.
type Lane string

const (
	High   Lane = "high"   // priorities 0 to 3
	Normal Lane = "normal" // priorities 4 to 6
	Low    Lane = "low"    // priorities 7 to 9
)

// Lanes lists the lanes, most urgent first.
var Lanes = []Lane{High, Normal, Low}

// LaneOf returns the lane of a priority. A priority out of range counts as the nearest legal one.
func LaneOf(priority int) Lane {
	switch {
	case priority <= 3:
		return High
	case priority <= 6:
		return Normal
	default:
		return Low
	}
}

// Priorities returns the first and last priority that belong to the lane.
func (l Lane) Priorities() (first, last int) {
	switch l {
	case High:
		return 0, 3
	case Normal:
		return 4, 6
	default:
		return 7, 9
	}
}

// Channels of workers. A task belongs to exactly one; canary is for trying out a new worker version.
const (
	ChannelStable = "stable"
	ChannelCanary = "canary"
)
