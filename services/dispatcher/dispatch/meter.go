package dispatch

import "time"

const (
	meterSlots = 10
	meterSlot  = time.Second / meterSlots
)

// meter counts what happened within the last second, in slots of a tenth. Times are the process's own, for their distance
// only.
type meter struct {
	slots [meterSlots]int
	last  int64 // number of the newest slot
	sum   int
}

func (m *meter) add(now time.Time, n int) {
	m.advance(now)
	m.slots[m.last%meterSlots] += n
	m.sum += n
}

// rate is how many were added within the last second.
func (m *meter) rate(now time.Time) int {
	m.advance(now)
	return m.sum
}

// advance empties the slots that have gone by.
func (m *meter) advance(now time.Time) {
	slot := int64(now.Sub(meterEpoch) / meterSlot)
	if slot-m.last >= meterSlots {
		m.slots, m.sum, m.last = [meterSlots]int{}, 0, slot
		return
	}
	for m.last < slot {
		m.last++
		m.sum -= m.slots[m.last%meterSlots]
		m.slots[m.last%meterSlots] = 0
	}
}

// meterEpoch makes small slot numbers. It is read with the monotonic clock, as all times compared with it.
var meterEpoch = time.Now()

// average is a mean that follows what it is told: each value counts a tenth.
type average struct {
	value time.Duration
	known bool
}

func (a *average) add(d time.Duration) {
	if !a.known {
		a.value, a.known = d, true
		return
	}
	a.value += (d - a.value) / 10
}
