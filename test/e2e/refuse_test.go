package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/ax-scheduler/ax/internal/localstack/stacktest"
	"github.com/ax-scheduler/ax/internal/task"
	"github.com/ax-scheduler/ax/pkg/client"
	"github.com/ax-scheduler/ax/pkg/events"
)

// badInput is a submission that no door may take, and what the refusal must say. allowed is a part of it.
type badInput struct {
	name, taskType, body        string
	code, field, value, allowed string
	late                        bool // only the database can tell, so it is no use to look before it is asked
}

// taken is the id of the one task that is stored while bad input is tried.
const taken = "order-7"

var badInputs = []badInput{
	{"unknown field", "email", `{"maxAttempt":2}`, events.CodeInvalid, "maxAttempt", "maxAttempt", "maxAttempts", false},
	{"the same id with another body", "email", `{"id":"order-7","payload":2}`, events.CodeIDConflict, "id", taken, "the same submission", true},
	{"the same id and body for another type", "sms", `{"id":"order-7","payload":1}`, events.CodeIDConflict, "id", taken, "the same submission", true},
	{"misspelt duration", "email", `{"delay":"5sec"}`, events.CodeInvalid, "delay", "5sec", `such as "90s"`, false},
	{"duration without unit", "email", `{"timeout":"30"}`, events.CodeInvalid, "timeout", "30", "with a unit", false},
	{"priority 10", "email", `{"priority":10}`, events.CodeInvalid, "priority", "10", "0 (most urgent) to 9", false},
	{"negative maxAttempts", "email", `{"maxAttempts":-1}`, events.CodeInvalid, "maxAttempts", "-1", "1 to 10000", false},
	{"payload over the limit", "email", `{"payload":"` + strings.Repeat("x", task.MaxPayload) + `"}`, events.CodeTooLarge, "payload", "524290 bytes", "at most 524288 bytes", false},
	{"illegal task type", "E-Mail", `{"payload":1}`, events.CodeInvalid, "type", "E-Mail", "a-z 0-9 _ -", false},
	{"illegal id", "email", `{"id":"a b"}`, events.CodeInvalid, "id", "a b", "A-Z a-z 0-9", false},
	{"empty id", "email", `{"id":""}`, events.CodeInvalid, "id", "", "A-Z a-z 0-9", false},
	{"reserved id", "email", `{"id":"cron:a:b"}`, events.CodeInvalid, "id", "cron:a:b", "not beginning with cron: or ax:", false},
	{"scheduledAt without zone", "email", `{"scheduledAt":"2030-01-31T08:00:00"}`, events.CodeInvalid, "scheduledAt", "2030-01-31T08:00:00", "with a zone", false},
	{"a delay that ends after expiresAt", "email", `{"delay":"48h","expiresAt":"2026-01-01T00:00:00Z"}`, events.CodeInvalid, "expiresAt", "2026-01-01T00:00:00Z", "after scheduledAt", true},
	{"invalid JSON", "email", `{"payload":}`, events.CodeInvalid, "body", `{"payload":}`, "one JSON object", false},
	{"empty body", "email", ``, events.CodeInvalid, "body", "", "a JSON object", false},
}

// requireSays checks a refusal. The sentence names what a program finds in the fields, so that a person finds it too.
func (b badInput) requireSays(t *testing.T, e *events.Error) {
	t.Helper()
	require.NotNil(t, e, "accepted")
	require.Equal(t, b.code, e.Code, e.Message)
	require.Equal(t, b.field, e.Field, e.Message)
	require.Equal(t, b.value, e.Value, e.Message)
	require.Contains(t, e.Allowed, b.allowed, e.Message)
	b.requireSentence(t, e.Message)
}

func (b badInput) requireSentence(t *testing.T, sentence string) {
	t.Helper()
	require.Contains(t, sentence, b.field)
	if b.field != "body" { // the whole of which is not repeated
		require.Contains(t, sentence, b.value)
	}
	require.Contains(t, strings.ReplaceAll(sentence, `\"`, `"`), b.allowed)
}

// Whatever the door, bad input is refused with the field, its value and what is allowed, and nothing of it is stored.
func TestBadInputIsRefusedAtEveryDoor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{workers: -1, services: []string{"submitter"}})
	bus := w.plain()
	_, err := w.client.Submit(t.Context(), client.NewTask("email", 1, client.ID(taken)))
	require.NoError(t, err)
	first, err := w.store.Get(t.Context(), taken)
	require.NoError(t, err)
	for _, b := range badInputs {
		for door, try := range map[string]func(*testing.T, badInput, *nats.Conn){
			"published": w.publishBad, "requested": w.requestBad, "by the client": w.clientBad, "on the command line": w.commandBad,
		} {
			t.Run(b.name+"/"+door, func(t *testing.T) {
				try(t, b, bus)
				require.EqualValues(t, 1, w.count(t, bson.D{}), "only what was there before")
			})
		}
	}
	now, err := w.store.Get(t.Context(), taken)
	require.NoError(t, err)
	require.Equal(t, first, now, "the task whose id was used again is as it was")
}

// publishBad publishes as any NATS client would, and looks at the answer and at what is kept in AX_DEAD.
func (w *world) publishBad(t *testing.T, b badInput, bus *nats.Conn) {
	answers, err := bus.SubscribeSync(bus.NewInbox())
	require.NoError(t, err)
	defer answers.Unsubscribe()
	js, err := jetstream.New(bus)
	require.NoError(t, err)
	queued, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "ax.submit." + b.taskType, Data: []byte(b.body),
		Header: nats.Header{events.HeaderReplyTo: {answers.Subject}}})
	require.NoError(t, err, "queued is not valid")
	reply, err := answers.NextMsg(late)
	require.NoError(t, err)
	var answer events.Answer
	require.NoError(t, json.Unmarshal(reply.Data, &answer))
	require.False(t, answer.Accepted)
	b.requireSays(t, answer.Error)

	stream, err := js.Stream(t.Context(), events.StreamDead)
	require.NoError(t, err)
	kept, err := stream.GetLastMsgForSubject(t.Context(), events.SubjectDeadSubmit) // stored before the answer is sent
	require.NoError(t, err)
	var dead events.DeadSubmit
	require.NoError(t, json.Unmarshal(kept.Data, &dead))
	require.Equal(t, queued.Sequence, dead.Sequence)
	require.Equal(t, "ax.submit."+b.taskType, dead.Subject)
	require.Equal(t, b.body, string(dead.Body))
	b.requireSays(t, &dead.Error)
}

func (w *world) requestBad(t *testing.T, b badInput, bus *nats.Conn) {
	if body := b.body; body != "" {
		b.body = `{"type":"` + b.taskType + `",` + body[1:]
		if b.value == body {
			b.value = b.body
		}
	}
	reply, err := bus.RequestWithContext(t.Context(), events.APISubmit, []byte(b.body))
	require.NoError(t, err)
	require.NotEmpty(t, reply.Header.Get("Nats-Service-Error-Code"))
	var refused events.Error
	require.NoError(t, json.Unmarshal(reply.Data, &refused))
	b.requireSays(t, &refused)
}

// clientBad tries each call of the client that submits.
func (w *world) clientBad(t *testing.T, b badInput, bus *nats.Conn) {
	body, err := events.DecodeSubmit([]byte(b.body))
	if err != nil {
		t.Skip("cannot be expressed in Go")
	}
	one := client.TaskOf(events.SubmitRequest{Type: b.taskType, Submit: body})
	if b.name == "empty id" { // a decoded body does not show it
		one = client.NewTask(b.taskType, nil, client.ID(""))
	}
	requireRefused := func(door string, err error) {
		t.Helper()
		var refused *events.Error
		require.ErrorAs(t, err, &refused, door)
		b.requireSays(t, refused)
	}
	_, err = w.client.Submit(t.Context(), one)
	requireRefused("Submit", err)
	answers, err := w.client.SubmitMany(t.Context(), []client.Task{one})
	require.NoError(t, err)
	require.NotNil(t, answers[0].Error)
	requireRefused("SubmitMany", answers[0].Error)
	requireRefused("InsertTx", w.transact(t, func(ctx context.Context, db *mongo.Database) error {
		_, err := w.client.InsertTx(ctx, db, one)
		return err
	}))
	err = w.client.Publish(t.Context(), one)[0]
	if !b.late {
		requireRefused("Publish", err)
		return
	}
	require.NoError(t, err, "queued; what the database knows is compared later")
	stacktest.Eventually(t, late, "AX_SUBMIT is empty", func() bool { return w.queued(bus) == 0 })
}

func (w *world) commandBad(t *testing.T, b badInput, _ *nats.Conn) {
	said := w.ax(t, b.body, "submit", b.taskType, "--body", "-")
	require.Equal(t, 2, said.code, said.errs)
	require.Empty(t, said.out)
	b.requireSentence(t, said.errs)
}
