package task

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func legalPolicy(rt *rapid.T) RetryPolicy {
	base := time.Duration(rapid.Int64Range(int64(MinRetryBase), int64(MaxRetryBase)).Draw(rt, "base"))
	return RetryPolicy{
		Base:   base,
		Factor: rapid.OneOf(rapid.Float64Range(1, MaxFactor), rapid.SampledFrom([]float64{1, 1.5, 2, MaxFactor})).Draw(rt, "factor"),
		Max:    time.Duration(rapid.Int64Range(int64(base), int64(MaxRetryMax)).Draw(rt, "max")),
		Jitter: rapid.Float64Range(0, 1).Draw(rt, "jitter"),
	}
}

func anyFailures(rt *rapid.T, name string) int {
	return rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 1<<31),
		rapid.SampledFrom([]int{40, 62, 63, 64, 1000, 10_000, 1 << 31})).Draw(rt, name)
}

func TestDelayStaysInItsBounds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := legalPolicy(rt)
		if err := p.Validate(); err != nil {
			rt.Fatalf("%+v refused: %v", p, err)
		}
		n, rnd := anyFailures(rt, "failures"), rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(rt, "random")
		got := p.Delay(n, rnd)
		highest := float64(p.Max) * (1 + p.Jitter)
		if got < p.Base || float64(got) > highest+1 { // one nanosecond for the rounding of the product
			rt.Fatalf("%+v after %d failures: %s is outside [%s, %s]", p, n, got, p.Base, time.Duration(highest))
		}
	})
}

func TestDelayWithoutJitterNeverShrinks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := legalPolicy(rt)
		p.Jitter = 0
		n := anyFailures(rt, "failures")
		m := n + rapid.IntRange(1, 1000).Draw(rt, "more")
		if a, b := p.Delay(n, 0), p.Delay(m, 0.99); a > b {
			rt.Fatalf("%+v: %s after %d failures, but %s after %d", p, a, n, b, m)
		}
	})
}

func TestDelayOfTheDefaultPolicy(t *testing.T) {
	for failures, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 12: 2048 * time.Second,
		13: time.Hour, 40: time.Hour, 62: time.Hour, 63: time.Hour, 64: time.Hour, 1000: time.Hour, 1 << 31: time.Hour,
	} {
		require.Equal(t, want, DefaultRetry.Delay(failures, 0), "failures %d", failures)
	}
	require.Equal(t, 1250*time.Millisecond, DefaultRetry.Delay(1, 0.5))
}

// A document written by hand may hold anything: the delay must still be a time in the near future.
func TestDelayOfIllegalPoliciesIsBounded(t *testing.T) {
	for _, factor := range []float64{math.NaN(), math.Inf(1), 1e308} {
		p := RetryPolicy{Base: time.Second, Factor: factor, Max: time.Hour}
		for _, n := range []int{2, 64, 1 << 31} {
			require.Equal(t, time.Hour, p.Delay(n, 0.5), "factor %v, failures %d", factor, n)
		}
	}
}

func TestRetryPolicyRefusals(t *testing.T) {
	change := func(f func(*RetryPolicy)) RetryPolicy { p := DefaultRetry; f(&p); return p }
	for name, c := range map[string]struct {
		policy RetryPolicy
		field  string
	}{
		"factor NaN":        {change(func(p *RetryPolicy) { p.Factor = math.NaN() }), "retry.factor"},
		"factor infinite":   {change(func(p *RetryPolicy) { p.Factor = math.Inf(1) }), "retry.factor"},
		"factor huge":       {change(func(p *RetryPolicy) { p.Factor = 1e308 }), "retry.factor"},
		"factor shrinks":    {change(func(p *RetryPolicy) { p.Factor = 0.5 }), "retry.factor"},
		"factor zero":       {change(func(p *RetryPolicy) { p.Factor = 0 }), "retry.factor"},
		"factor negative":   {change(func(p *RetryPolicy) { p.Factor = -1 }), "retry.factor"},
		"jitter NaN":        {change(func(p *RetryPolicy) { p.Jitter = math.NaN() }), "retry.jitter"},
		"jitter infinite":   {change(func(p *RetryPolicy) { p.Jitter = math.Inf(1) }), "retry.jitter"},
		"jitter negative":   {change(func(p *RetryPolicy) { p.Jitter = -0.1 }), "retry.jitter"},
		"jitter above one":  {change(func(p *RetryPolicy) { p.Jitter = 1.01 }), "retry.jitter"},
		"base zero":         {change(func(p *RetryPolicy) { p.Base = 0 }), "retry.base"},
		"base negative":     {change(func(p *RetryPolicy) { p.Base = -time.Second }), "retry.base"},
		"base over a day":   {change(func(p *RetryPolicy) { p.Base = 25 * time.Hour }), "retry.base"},
		"max below base":    {change(func(p *RetryPolicy) { p.Max = p.Base - 1 }), "retry.max"},
		"max over 30 days":  {change(func(p *RetryPolicy) { p.Max = MaxRetryMax + 1 }), "retry.max"},
		"max the largest":   {change(func(p *RetryPolicy) { p.Max = math.MaxInt64 }), "retry.max"},
		"max zero":          {change(func(p *RetryPolicy) { p.Max = 0 }), "retry.max"},
		"everything is off": {RetryPolicy{}, "retry.base"},
	} {
		t.Run(name, func(t *testing.T) {
			var refused *FieldError
			require.True(t, errors.As(c.policy.Validate(), &refused))
			require.Equal(t, c.field, refused.Field)
			require.ErrorIs(t, refused, ErrInvalid)
		})
	}
	require.NoError(t, DefaultRetry.Validate())
}
