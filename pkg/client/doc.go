// Package client is for programs that submit tasks to ax, look at them, wait for them and listen to what becomes of them.
//
//	c, err := client.Connect(client.Options{NATSURL: "nats://127.0.0.1:4222"})
//	...
//	defer c.Close()
//	id, err := c.Submit(ctx, client.NewTask("email", Email{To: "a@example.com"}, client.Delay(time.Minute)))
//	task, err := c.Wait(ctx, id)
//
// # Three ways to submit
//
// [Client.Submit] asks the submitter and returns once the task is stored: it survives the loss of NATS. [Client.Publish]
// returns once NATS has the submission on disk, which is faster for many; it becomes a task, or a message in AX_DEAD that
// says why not. [Client.InsertTx] writes the task inside the caller's own MongoDB transaction: it exists if and only if the
// transaction commits, and running the same transaction again is safe. All three refuse bad input before anything is sent, with
// an [*events.Error] that names the field.
//
// A submission carries its id from the start, chosen by the caller with [ID] or made by [NewTask]. Submitting the same
// again, after a lost reply say, is therefore safe: it is accepted once.
package client
