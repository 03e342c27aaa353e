package task

import (
	"math"
	"time"
)

// RetryPolicy says how long a failed attempt waits before the next one. The delay after failure n is
// min(Max, Base * Factor^(n-1)), plus a random share between 0 and Jitter of it.
type RetryPolicy struct {
	Base   time.Duration // 100 ms to 24 h
	Factor float64       // 1 to 10
	Max    time.Duration // Base to 30 days
	Jitter float64       // 0 to 1
}

// DefaultRetry is used by a task whose submission names no policy: 1 s, 2 s, 4 s, ... up to 1 h, each up to half longer.
var DefaultRetry = RetryPolicy{Base: time.Second, Factor: 2, Max: time.Hour, Jitter: 0.5}

// Limits of a retry policy.
const (
	MinRetryBase = 100 * time.Millisecond
	MaxRetryBase = 24 * time.Hour
	MaxRetryMax  = 30 * 24 * time.Hour
	MaxFactor    = 10
)

// Delay returns the wait after the given number of failures (at least 1). rnd in [0,1) chooses the jitter. The result is
// always in [0, Max*(1+Jitter)]: the cap is applied before anything is converted to an integer, so it cannot overflow.
func (p RetryPolicy) Delay(failures int, rnd float64) time.Duration {
	if failures < 1 {
		failures = 1
	}
	// In whole nanoseconds as floats: every legal Max is far below 2^53, so the cap and what lies below it are exact.
	wait := float64(p.Base) * math.Pow(p.Factor, float64(failures-1))
	if limit := float64(p.Max); !(wait <= limit) { // also true for NaN and +Inf
		wait = limit
	}
	return time.Duration(wait + wait*p.Jitter*rnd)
}

// Validate returns a [FieldError] for the first setting out of range, with field names relative to "retry".
func (p RetryPolicy) Validate() error {
	switch {
	case p.Base < MinRetryBase || p.Base > MaxRetryBase:
		return &FieldError{Field: "retry.base", Value: p.Base.String(), Allowed: "a duration from 100ms to 24h"}
	case !(p.Factor >= 1 && p.Factor <= MaxFactor):
		return &FieldError{Field: "retry.factor", Value: formatFloat(p.Factor), Allowed: "a number from 1 to 10"}
	case p.Max < p.Base || p.Max > MaxRetryMax:
		return &FieldError{Field: "retry.max", Value: p.Max.String(), Allowed: "a duration from retry.base to 720h"}
	case !(p.Jitter >= 0 && p.Jitter <= 1):
		return &FieldError{Field: "retry.jitter", Value: formatFloat(p.Jitter), Allowed: "a number from 0 to 1"}
	}
	return nil
}
