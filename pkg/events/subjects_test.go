package events

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnswerable(t *testing.T) {
	for _, subject := range []string{"_INBOX.abc.1", "replies", "my.app.answers", "axe.x", "a-b_c.D"} {
		require.True(t, Answerable(subject), subject)
	}
	for _, subject := range []string{
		"", "ax", "ax.submit.email", "ax.control.cancel", "$JS.API.STREAM.DELETE.AX_SUBMIT", "$SYS.x", "a.*", ">", "a.>", "a b", "a\r\nPUB x 1",
		".a", "a.", "a..b", "a\x00", strings.Repeat("x", 256),
	} {
		require.False(t, Answerable(subject), "%q", subject)
	}
}

func TestTypeOfSubmit(t *testing.T) {
	kind, ok := TypeOfSubmit(SubjectSubmit("email"))
	require.True(t, ok)
	require.Equal(t, "email", kind)
	_, ok = TypeOfSubmit(SubjectWorkflow)
	require.False(t, ok)
}

func TestStatusOfEachCode(t *testing.T) {
	for code, want := range map[string]int{CodeInvalid: 400, CodeNotFound: 404, CodeIDConflict: 409, CodeFinished: 409, CodeTooLarge: 413,
		CodeUnsupported: 501, CodeUnavailable: 503, CodeInternal: 500, "of a later version": 500} {
		require.Equal(t, want, (&Error{Code: code}).Status(), code)
	}
}
