// Package process is what every service of ax has in common: configuration, logs, health, metrics, the order of
// stopping, and exit codes. A service is a struct that embeds Common and a function that sets it up:
//
//	type Config struct {
//		process.Common
//		Batch int `envconfig:"SUBMITTER_BATCH" default:"500" min:"1" max:"5000" desc:"tasks stored at once"`
//	}
//
//	func main() {
//		var c Config
//		process.Main("submitter", &c, func(ctx context.Context, p *process.Process) error { ... })
//	}
//
// Exit codes: 0 stopped in order, 1 failed at start, while running or while stopping (also: stopped by a second
// signal), 2 bad configuration.
package process
