package process

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childMode) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(m)
}
