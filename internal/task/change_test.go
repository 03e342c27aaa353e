package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestChangeRoundTrip(t *testing.T) {
	state := rapid.SampledFrom(append([]State{""}, States...))
	word := rapid.StringMatching(`[A-Za-z0-9._:@/ -]{0,40}`)
	// Milliseconds of the years 1 to 9999; the store keeps no more.
	millis := rapid.Int64Range(-62135596800000, 253402300799999)
	rapid.Check(t, func(rt *rapid.T) {
		in := Change{
			Seq:         rapid.Int64().Draw(rt, "seq"),
			Type:        rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,63}`).Draw(rt, "type"),
			Channel:     rapid.SampledFrom([]string{ChannelStable, ChannelCanary}).Draw(rt, "channel"),
			Priority:    rapid.IntRange(MinPriority, MaxPriority).Draw(rt, "priority"),
			From:        state.Draw(rt, "from"),
			To:          state.Draw(rt, "to"),
			Reason:      rapid.SampledFrom(allReasons).Draw(rt, "reason"),
			Attempt:     rapid.Int().Draw(rt, "attempt"),
			Claim:       word.Draw(rt, "claim"),
			At:          time.UnixMilli(millis.Draw(rt, "at")).UTC(),
			ScheduledAt: time.UnixMilli(millis.Draw(rt, "scheduledAt")).UTC(),
			By:          word.Draw(rt, "by"),
			Echo:        rapid.OneOf(rapid.String(), rapid.StringMatching(`[|{}":a-z]*`)).Draw(rt, "echo"),
		}
		out, err := ParseChange(in.String())
		if err != nil {
			rt.Fatal(err)
		}
		if out != in {
			rt.Fatalf("went in as %+v, came out as %+v", in, out)
		}
	})
}

func TestChangeKeepsBarsInEcho(t *testing.T) {
	in := Change{Seq: 7, Type: "email", Channel: ChannelStable, To: Pending, Reason: ReasonSubmitted,
		At: time.UnixMilli(1).UTC(), ScheduledAt: time.UnixMilli(2).UTC(), By: "nats", Echo: `{"bizKey":"a|b||c|"}`}
	require.Equal(t, `7|email|stable|0||pending|submitted|0||1|2|nats|{"bizKey":"a|b||c|"}`, in.String())
	out, err := ParseChange(in.String())
	require.NoError(t, err)
	require.Equal(t, in, out)
}

func TestParseChangeRefusals(t *testing.T) {
	good := `1|a|stable|5||pending|submitted|0||1|2|by|`
	_, err := ParseChange(good)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"empty":            "",
		"no echo part":     `1|a|stable|5||pending|submitted|0||1|2|by`,
		"sequence":         `x|a|stable|5||pending|submitted|0||1|2|by|`,
		"priority":         `1|a|stable|high||pending|submitted|0||1|2|by|`,
		"attempt":          `1|a|stable|5||pending|submitted||c|1|2|by|`,
		"time":             `1|a|stable|5||pending|submitted|0||1.5|2|by|`,
		"scheduled":        `1|a|stable|5||pending|submitted|0||1||by|`,
		"sequence too big": `9223372036854775808|a|stable|5||pending|submitted|0||1|2|by|`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseChange(text)
			require.ErrorContains(t, err, "parse change: ")
		})
	}
}

func FuzzParseChange(f *testing.F) {
	f.Add(`1|a|stable|5||pending|submitted|0||1|2|by|{"bizKey":"x|y"}`)
	f.Add(`|||||||||||||`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseChange(text)
		if err != nil {
			return
		}
		again, err := ParseChange(c.String())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}
