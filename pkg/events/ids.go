package events

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/oklog/ulid/v2"
)

// NewID makes a task id: a ULID, whose first characters are the time by this host's clock (for the eye only, nothing
// compares them) and whose rest is random. It is safe for concurrent use.
func NewID() string {
	// The reader never fails: crypto/rand aborts the process rather than return an error. The time fits until the year 10889.
	return ulid.MustNew(ulid.Now(), rand.Reader).String()
}

// DeriveID makes the id of a submission that names none: a ULID whose time is that of its stream message and whose entropy
// is the SHA-256 of the message's timestamp, stream sequence and subject. A redelivered message has all three again, so it
// gets the same id and can never become a second task.
func DeriveID(streamTime time.Time, sequence uint64, subject string) string {
	seed := make([]byte, 16, 16+len(subject))
	binary.BigEndian.PutUint64(seed, uint64(streamTime.UnixNano()))
	binary.BigEndian.PutUint64(seed[8:], sequence)
	sum := sha256.Sum256(append(seed, subject...))

	var id ulid.ULID
	// A stream timestamp is nanoseconds since 1970 in 64 bits, so its milliseconds always fit in a ULID's 48.
	_ = id.SetTime(uint64(max(0, streamTime.UnixMilli())))
	_ = id.SetEntropy(sum[:10])
	return id.String()
}

// NewToken makes a claim token: 26 characters of A-Z and 2-7 with 130 random bits, so that no two are ever equal. It
// contains neither the bar that separates the parts of a change nor the colon of an execution id.
func NewToken() string { return rand.Text() }
