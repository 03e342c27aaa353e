package process

import (
	"os"
	"sync"
	"time"
)

// wallOffset is AX_TEST_CLOCK_OFFSET. It is read here and not from Common because workers and clients, which live in
// other people's programs, must follow it too. A service refuses a value that cannot be read; elsewhere it counts as 0.
var wallOffset = sync.OnceValue(func() time.Duration {
	d, err := time.ParseDuration(os.Getenv("AX_TEST_CLOCK_OFFSET"))
	if err != nil {
		return 0
	}
	return d
})

// Wall is this host's wall clock. It may be wrong by any amount, so nothing that is stored or compared with another
// host's time may come from it; tests shift it by AX_TEST_CLOCK_OFFSET to prove that.
func Wall() time.Time { return time.Now().Add(wallOffset()) }
