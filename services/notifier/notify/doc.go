// Package notify tells the world what happened to tasks. It follows the database's change stream and publishes each change
// on ax.event.<type>.<state>, in each task's own order, at least once. Its place in the stream is stored only after
// everything before it has been acknowledged and every dead letter before it has been written, so a crash at any moment
// repeats events (with the same message id) and loses none.
//
// Where the stream cannot tell what happened (its history is gone, the event stream on NATS was lost, or the database has
// no change streams at all), the events are made again from the history that each task keeps.
package notify
