// Package natsbus is everything ax does with NATS: the connection, the streams and their settings, publishing that waits
// for acknowledgements, the consumers of submissions and of work signals, request/reply, and Watermill adapters for the
// idempotent consumers of events.
//
// NATS only suggests what to look at; the truth is in the database. So each part here recovers by itself from a restart
// of the server, from a deleted consumer or stream and from a lost store, and none of them promises more than delivery at
// least once.
package natsbus
