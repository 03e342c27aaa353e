// Package localstack runs the two servers ax needs, NATS and a MongoDB-compatible database, on this machine: for
// `ax dev`, the demo, the benchmarks and the tests. Nothing here is used in production.
package localstack
