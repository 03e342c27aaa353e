package dispatch

import (
	"testing"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }
