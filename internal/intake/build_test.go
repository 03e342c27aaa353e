package intake

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the database's time in these tests.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// take is what a door does with a body.
func take(body string) (*task.Task, error) {
	sub, err := events.DecodeSubmit([]byte(body))
	if err != nil {
		return nil, Refusal(err)
	}
	return Build(&sub, Origin{Type: "email", ID: "derived-1", Source: SourceNATS, Now: now, Body: []byte(body)})
}

func TestDefaults(t *testing.T) {
	got, err := take(`{"payload": {"to": "a@example.com", "n": 1.0}}`)
	require.NoError(t, err)
	hash := got.SubmitHash
	got.SubmitHash = ""
	require.Equal(t, &task.Task{
		ID: "derived-1", Type: "email", State: task.Pending, Channel: task.ChannelStable, Priority: 5, Source: SourceNATS,
		MaxAttempts: 3, MaxLosses: 3, Timeout: 30 * time.Minute, Retry: task.DefaultRetry, OnExhausted: task.DeadLetter,
		Payload: json.RawMessage(`{"to":"a@example.com","n":1.0}`),
	}, got)
	require.Regexp(t, `^v1:[0-9a-f]{64}$`, hash)
}

// That the start was asked for as a delay is kept: it moves with the database's clock, while a chosen time stays.
func TestADelayIsKept(t *testing.T) {
	got, err := take(`{"delay":"90s"}`)
	require.NoError(t, err)
	require.Equal(t, 90*time.Second, got.Delay)
	require.Equal(t, now.Add(90*time.Second), got.ScheduledAt)
	got, err = take(`{"scheduledAt":"2026-03-01T18:30:00+05:30"}`)
	require.NoError(t, err)
	require.Zero(t, got.Delay)
}

func TestEveryField(t *testing.T) {
	got, err := take(`{"id":"order:7","payload":[1e400, "\ud800", 9007199254740993],"priority":0,"scheduledAt":"2026-03-01T18:30:00.0001+05:30",
		"expiresAt":"2026-03-02T00:00:00Z","timeout":"PT1M30S","maxAttempts":1,"maxLosses":0,
		"retry":{"base":"250ms","factor":1,"max":"1s","jitter":0},"bizKey":"a|b","labels":{"tenant":"<x>"},"onExhausted":"ignore"}`)
	require.NoError(t, err)
	require.Equal(t, "order:7", got.ID)
	require.True(t, got.FixedID)
	require.Equal(t, `[1e400,"\ud800",9007199254740993]`, string(got.Payload))
	require.Equal(t, 0, got.Priority)
	require.Equal(t, now.Add(time.Hour+time.Millisecond), got.ScheduledAt, "rounded up: nothing starts before its time")
	require.Equal(t, now.Add(12*time.Hour), got.ExpiresAt)
	require.Equal(t, 90*time.Second, got.Timeout)
	require.Equal(t, 1, got.MaxAttempts)
	require.Equal(t, 0, got.MaxLosses)
	require.Equal(t, task.RetryPolicy{Base: 250 * time.Millisecond, Factor: 1, Max: time.Second}, got.Retry)
	require.Equal(t, "ignore", got.OnExhausted)
	require.Equal(t, `{"bizKey":"a|b","labels":{"tenant":"<x>"}}`, got.Echo)
}

func TestRefusedBodies(t *testing.T) {
	big := `"` + strings.Repeat("x", task.MaxPayload-1) + `"`
	for name, c := range map[string]struct{ body, code, field, value string }{
		"unknown field":              {`{"maxAttempt":3}`, events.CodeInvalid, "maxAttempt", "maxAttempt"},
		"misspelt duration":          {`{"delay":"5 sec"}`, events.CodeInvalid, "delay", "5 sec"},
		"misspelt timeout":           {`{"timeout":"1 hour"}`, events.CodeInvalid, "timeout", "1 hour"},
		"duration without unit":      {`{"timeout":"30"}`, events.CodeInvalid, "timeout", "30"},
		"zero without unit":          {`{"delay":"0"}`, events.CodeInvalid, "delay", "0"},
		"duration as a number":       {`{"timeout":30}`, events.CodeInvalid, "timeout", "30"},
		"negative delay":             {`{"delay":"-5s"}`, events.CodeInvalid, "delay", "-5s"},
		"negative ISO delay":         {`{"delay":"-PT5S"}`, events.CodeInvalid, "delay", "-PT5S"},
		"delay of a billion hours":   {`{"delay":"1e9h"}`, events.CodeInvalid, "delay", "1e9h"},
		"delay past the year 2200":   {`{"delay":"2000000h"}`, events.CodeInvalid, "delay", "2000000h"},
		"delay of a month":           {`{"delay":"P1M"}`, events.CodeInvalid, "delay", "P1M"},
		"delay of a year and a day":  {`{"delay":"P1Y1D"}`, events.CodeInvalid, "delay", "P1Y1D"},
		"delay that overflows":       {`{"delay":"P999999999999W"}`, events.CodeInvalid, "delay", "P999999999999W"},
		"priority 10":                {`{"priority":10}`, events.CodeInvalid, "priority", "10"},
		"priority -1":                {`{"priority":-1}`, events.CodeInvalid, "priority", "-1"},
		"priority high":              {`{"priority":"high"}`, events.CodeInvalid, "priority", `"high"`},
		"priority 1.5":               {`{"priority":1.5}`, events.CodeInvalid, "priority", "1.5"},
		"priority null":              {`{"priority":null}`, events.CodeInvalid, "priority", "null"},
		"negative maxAttempts":       {`{"maxAttempts":-1}`, events.CodeInvalid, "maxAttempts", "-1"},
		"no maxAttempts":             {`{"maxAttempts":0}`, events.CodeInvalid, "maxAttempts", "0"},
		"negative maxLosses":         {`{"maxLosses":-1}`, events.CodeInvalid, "maxLosses", "-1"},
		"no timeout":                 {`{"timeout":"0s"}`, events.CodeInvalid, "timeout", "0s"},
		"timeout over a week":        {`{"timeout":"P8D"}`, events.CodeInvalid, "timeout", "192h0m0s"},
		"payload over the limit":     {`{"payload":` + big[:len(big)-1] + `x"}`, events.CodeTooLarge, "payload", "524290 bytes"},
		"illegal id":                 {`{"id":"a b"}`, events.CodeInvalid, "id", "a b"},
		"id with a wildcard":         {`{"id":"*"}`, events.CodeInvalid, "id", "*"},
		"id too long":                {`{"id":"` + strings.Repeat("x", 129) + `"}`, events.CodeInvalid, "id", strings.Repeat("x", 64) + "..."},
		"empty id":                   {`{"id":""}`, events.CodeInvalid, "id", ""},
		"id of a schedule":           {`{"id":"cron:x:2026-01-01T00:00:00Z"}`, events.CodeInvalid, "id", "cron:x:2026-01-01T00:00:00Z"},
		"id of ax":                   {`{"id":"ax:rerun:1"}`, events.CodeInvalid, "id", "ax:rerun:1"},
		"scheduledAt without zone":   {`{"scheduledAt":"2026-03-01T12:00:00"}`, events.CodeInvalid, "scheduledAt", "2026-03-01T12:00:00"},
		"scheduledAt a day":          {`{"scheduledAt":"2026-03-01"}`, events.CodeInvalid, "scheduledAt", "2026-03-01"},
		"scheduledAt in ms":          {`{"scheduledAt":1772366400000}`, events.CodeInvalid, "scheduledAt", "1772366400000"},
		"scheduledAt in ms, quoted":  {`{"scheduledAt":"1772366400000"}`, events.CodeInvalid, "scheduledAt", "1772366400000"},
		"scheduledAt in year 1":      {`{"scheduledAt":"0001-01-01T00:00:00Z"}`, events.CodeInvalid, "scheduledAt", "0001-01-01T00:00:00Z"},
		"scheduledAt in year 10000":  {`{"scheduledAt":"10000-01-01T00:00:00Z"}`, events.CodeInvalid, "scheduledAt", "10000-01-01T00:00:00Z"},
		"scheduledAt in year 2300":   {`{"scheduledAt":"2300-01-01T00:00:00Z"}`, events.CodeInvalid, "scheduledAt", "2300-01-01T00:00:00Z"},
		"scheduledAt a leap second":  {`{"scheduledAt":"2026-06-30T23:59:60Z"}`, events.CodeInvalid, "scheduledAt", "2026-06-30T23:59:60Z"},
		"scheduledAt and delay":      {`{"scheduledAt":"2026-03-02T00:00:00Z","delay":"5s"}`, events.CodeInvalid, "delay", "5s"},
		"expiresAt without zone":     {`{"expiresAt":"2026-03-01T12:00:00"}`, events.CodeInvalid, "expiresAt", "2026-03-01T12:00:00"},
		"expiresAt before start":     {`{"scheduledAt":"2026-03-03T00:00:00Z","expiresAt":"2026-03-02T00:00:00Z"}`, events.CodeInvalid, "expiresAt", "2026-03-02T00:00:00Z"},
		"expires before past start":  {`{"scheduledAt":"2026-01-03T00:00:00Z","expiresAt":"2026-01-02T00:00:00Z"}`, events.CodeInvalid, "expiresAt", "2026-01-02T00:00:00Z"},
		"expires before delay ends":  {`{"delay":"24h","expiresAt":"2026-03-02T00:00:00Z"}`, events.CodeInvalid, "expiresAt", "2026-03-02T00:00:00Z"},
		"retry base without unit":    {`{"retry":{"base":"1"}}`, events.CodeInvalid, "retry.base", "1"},
		"retry base zero":            {`{"retry":{"base":"0s"}}`, events.CodeInvalid, "retry.base", "0s"},
		"retry factor zero":          {`{"retry":{"factor":0}}`, events.CodeInvalid, "retry.factor", "0"},
		"retry factor 1e308":         {`{"retry":{"factor":1e308}}`, events.CodeInvalid, "retry.factor", "1e+308"},
		"retry factor 1e400":         {`{"retry":{"factor":1e400}}`, events.CodeInvalid, "retry.factor", "1e400"},
		"retry max below base":       {`{"retry":{"base":"10s","max":"5s"}}`, events.CodeInvalid, "retry.max", "5s"},
		"retry jitter 2":             {`{"retry":{"jitter":2}}`, events.CodeInvalid, "retry.jitter", "2"},
		"unknown retry field":        {`{"retry":{"bases":"1s"}}`, events.CodeInvalid, "retry.bases", "bases"},
		"onExhausted":                {`{"onExhausted":"drop"}`, events.CodeInvalid, "onExhausted", "drop"},
		"bizKey with ESC":            {`{"bizKey":"\u001b[31m"}`, events.CodeInvalid, "bizKey", "\x1b[31m"},
		"bizKey too long":            {`{"bizKey":"` + strings.Repeat("é", 200) + `"}`, events.CodeInvalid, "bizKey", strings.Repeat("é", 32) + "..."},
		"label name with a dot":      {`{"labels":{"a.b":"c"}}`, events.CodeInvalid, "labels", "a.b"},
		"label value of a number":    {`{"labels":{"a":1}}`, events.CodeInvalid, "labels.a", "1"},
		"labels over 4 KiB":          {`{"labels":{` + manyLabels(32, 120) + `}}`, events.CodeInvalid, "labels", "7884 bytes"},
		"invalid JSON":               {`{"payload":}`, events.CodeInvalid, "body", `{"payload":}`},
		"not JSON at all":            {`hello`, events.CodeInvalid, "body", "hello"},
		"empty body":                 {``, events.CodeInvalid, "body", ""},
		"white space":                {" \n", events.CodeInvalid, "body", ""},
		"a list":                     {`[]`, events.CodeInvalid, "body", "[]"},
		"null":                       {`null`, events.CodeInvalid, "body", "null"},
		"two bodies":                 {`{}{}`, events.CodeInvalid, "body", "{}{}"},
		"invalid UTF-8":              {"{\"payload\":\"\xff\"}", events.CodeInvalid, "body", "{\"payload\":\"\uFFFD\"}"},
		"a field twice":              {`{"priority":1,"priority":2}`, events.CodeInvalid, "priority", "2"},
		"type in the body":           {`{"type":"email"}`, events.CodeInvalid, "type", "type"},
		"unique without a key":       {`{"unique":{}}`, events.CodeInvalid, "unique.key", ""},
		"unique key with NUL":        {`{"unique":{"key":"\u0000"}}`, events.CodeInvalid, "unique.key", "\x00"},
		"unique scope":               {`{"unique":{"key":"a","scope":"always"}}`, events.CodeInvalid, "unique.scope", "always"},
		"unique scope, no time":      {`{"unique":{"key":"a","scope":"duration"}}`, events.CodeInvalid, "unique.for", ""},
		"unique scope, idle time":    {`{"unique":{"key":"a","for":"1m"}}`, events.CodeInvalid, "unique.for", "1m"},
		"unique scope, no unit":      {`{"unique":{"key":"a","scope":"duration","for":"60"}}`, events.CodeInvalid, "unique.for", "60"},
		"unique scope, short":        {`{"unique":{"key":"a","scope":"duration","for":"1ms"}}`, events.CodeInvalid, "unique.for", "1ms"},
		"unique on conflict":         {`{"unique":{"key":"a","onConflict":"ignore"}}`, events.CodeInvalid, "unique.onConflict", "ignore"},
		"debounce without a delay":   {`{"unique":{"key":"a","onConflict":"debounce"}}`, events.CodeInvalid, "unique.onConflict", "debounce"},
		"debounce, short wait":       {`{"delay":"1m","unique":{"key":"a","onConflict":"debounce","maxWait":"1s"}}`, events.CodeInvalid, "unique.maxWait", "1s"},
		"idle wait":                  {`{"unique":{"key":"a","maxWait":"1s"}}`, events.CodeInvalid, "unique.maxWait", "1s"},
		"unknown member of unique":   {`{"unique":{"key":"a","ttl":"1s"}}`, events.CodeInvalid, "unique.ttl", "ttl"},
		"dependsOn, not supported":   {`{"dependsOn":["a"]}`, events.CodeUnsupported, "dependsOn", ""},
		"condition, not supported":   {`{"condition":"all_success"}`, events.CodeUnsupported, "condition", ""},
		"waitFor, not supported":     {`{"waitFor":["g"]}`, events.CodeUnsupported, "waitFor", ""},
		"concurrency, not supported": {`{"concurrencyKey":"k"}`, events.CodeUnsupported, "concurrencyKey", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := take(c.body)
			require.Nil(t, got)
			var refused *events.Error
			require.True(t, errors.As(err, &refused), "accepted, or refused by %v", err)
			require.Equal(t, c.code, refused.Code, refused.Message)
			require.Equal(t, c.field, refused.Field, refused.Message)
			require.Equal(t, c.value, refused.Value, refused.Message)
			require.NotEmpty(t, refused.Message)
			require.Less(t, len(refused.Message), 400)
			if c.code == events.CodeInvalid {
				require.NotEmpty(t, refused.Allowed)
			}
		})
	}
}

func manyLabels(n, length int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"%s":"%s"`, fmt.Sprintf("%0*d", length, i), strings.Repeat("v", length)))
	}
	return strings.Join(all, ",")
}

func TestRefusedTypes(t *testing.T) {
	for _, name := range []string{"", "a.b", "*", ">", "a b", "A", strings.Repeat("x", 300), "émoji😀", "a\r\nPUB x 1"} {
		_, err := Build(&events.Submit{}, Origin{Type: name, Now: now})
		var refused *events.Error
		require.True(t, errors.As(err, &refused), "%q", name)
		require.Equal(t, "type", refused.Field)
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute, "250ms": 250 * time.Millisecond,
		"0s": 0, "PT0S": 0, "P0D": 0, "PT90S": 90 * time.Second, "PT1.5S": 1500 * time.Millisecond, "P1DT12H": 36 * time.Hour, "P2W": 14 * 24 * time.Hour,
		"PT1H2M3S": time.Hour + 2*time.Minute + 3*time.Second,
	} {
		got, err := parseDuration("delay", text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", " ", "0", "5", "5 s", "5S", "s", "5d", "1y", "-1s", "-0s", "+", "1e3s", "P", "PT", "P1DT", "P1", "PT5", "P5S", "P1H", "PT1D", "PT1W", "P1W2D",
		"P1DT1H1H", "PTT1S", "PT1S1M", "P1Y", "P1M", "P1Y2M3D", "P0Y", "PT1,5S", "PT1.H", "P1.5D", "p1d", "P-1D", "P٣D", "P½D", "PT1S ",
		"9223372037s", "P106752D", "PT" + strings.Repeat("9", 400) + "S",
	} {
		got, err := parseDuration("delay", text)
		var refused *task.FieldError
		require.True(t, errors.As(err, &refused), "%q was read as %s", text, got)
		require.Equal(t, text, refused.Value)
	}
}

// What a Go duration says must come back the same in both notations.
func TestDurationsAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(100*365*24*time.Hour/time.Millisecond)).Draw(rt, "ms")) * time.Millisecond
		iso := fmt.Sprintf("P%dDT%dH%dM%d.%03dS", d/(24*time.Hour), d/time.Hour%24, d/time.Minute%60, d/time.Second%60, d/time.Millisecond%1000)
		for _, text := range []string{d.String(), iso} {
			got, err := parseDuration("delay", text)
			if err != nil || got != d {
				rt.Fatalf("%s: %s was read as %s (%v)", d, text, got, err)
			}
		}
	})
}

func TestTimes(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want time.Time // zero: at once
	}{
		"nothing":         {`{}`, time.Time{}},
		"a minute ahead":  {`{"scheduledAt":"2026-03-01T12:01:00Z"}`, now.Add(time.Minute)},
		"31 days ahead":   {`{"scheduledAt":"2026-04-01T12:00:00Z"}`, now.Add(31 * 24 * time.Hour)},
		"the year 2100":   {`{"scheduledAt":"2100-01-01T00:00:00Z"}`, time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)},
		"another zone":    {`{"scheduledAt":"2026-03-01T18:00:00+05:30"}`, now.Add(30 * time.Minute)},
		"past times run":  {`{"scheduledAt":"2020-01-01T00:00:00Z"}`, time.Time{}},
		"now runs":        {`{"scheduledAt":"2026-03-01T12:00:00Z"}`, time.Time{}},
		"a delay":         {`{"delay":"90s"}`, now.Add(90 * time.Second)},
		"an ISO delay":    {`{"delay":"P31D"}`, now.Add(31 * 24 * time.Hour)},
		"no delay":        {`{"delay":"0s"}`, time.Time{}},
		"already expired": {`{"expiresAt":"2020-01-01T00:00:00Z"}`, time.Time{}}, // stored, and expires: a message may have waited
	} {
		t.Run(name, func(t *testing.T) {
			got, err := take(c.body)
			require.NoError(t, err)
			require.Equal(t, c.want, got.ScheduledAt)
		})
	}
}

func TestRetryBaseAboveTheDefaultCap(t *testing.T) {
	got, err := take(`{"retry":{"base":"2h"}}`)
	require.NoError(t, err)
	require.Equal(t, 2*time.Hour, got.Retry.Max)
}

func TestPayloadLimitCountsNoWhiteSpace(t *testing.T) {
	payload := `[` + strings.Repeat(" ", 1000) + `"` + strings.Repeat("x", task.MaxPayload-4) + `"]`
	got, err := take(`{"payload":` + payload + `}`)
	require.NoError(t, err)
	require.Len(t, got.Payload, task.MaxPayload)
	_, err = take(`{"payload":` + strings.Replace(payload, "xx", "xxx", 1) + `}`)
	require.Equal(t, events.CodeTooLarge, Refusal(err).Code)
}

func TestIDs(t *testing.T) {
	build := func(id string, from Origin) *task.Task {
		from.Type, from.Now = "email", now
		got, err := Build(&events.Submit{ID: id}, from)
		require.NoError(t, err)
		return got
	}
	made := build("", Origin{})
	require.Len(t, made.ID, 26)
	require.False(t, made.FixedID, "nobody can have stored it before")
	require.NotEqual(t, made.ID, build("", Origin{}).ID)

	derived := build("", Origin{ID: "cron:nightly:2026-03-01T00:00:00Z"})
	require.Equal(t, "cron:nightly:2026-03-01T00:00:00Z", derived.ID)
	require.False(t, derived.FixedID)
	require.True(t, build("", Origin{ID: "d", Repeated: true}).FixedID)

	chosen := build("mine", Origin{ID: "derived"})
	require.Equal(t, "mine", chosen.ID)
	require.True(t, chosen.FixedID)
}

func TestTraceparent(t *testing.T) {
	good := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for given, want := range map[string]string{good: good, "": "", "garbage": "", good + "\r\nx: y": "", strings.ToUpper(good): ""} {
		got, err := Build(&events.Submit{}, Origin{Type: "email", Now: now, Traceparent: given})
		require.NoError(t, err)
		require.Equal(t, want, got.Traceparent)
	}
}

func TestPayloadOfAGoCallerIsChecked(t *testing.T) {
	_, err := Build(&events.Submit{Payload: json.RawMessage(`{`)}, Origin{Type: "email", Now: now})
	require.Equal(t, "payload", Refusal(err).Field)
	require.Equal(t, events.CodeInvalid, Refusal(err).Code)
}

func TestEmptyListsAskForNothing(t *testing.T) {
	_, err := take(`{"dependsOn":[],"waitFor":[],"condition":"","concurrencyKey":"","labels":{}}`)
	require.NoError(t, err)
}
