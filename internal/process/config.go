package process

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Common is the configuration every service has. A service's own configuration embeds it.
type Common struct {
	MongoURI        string        `envconfig:"MONGO_URI" required:"true" secret:"true" desc:"connection string of MongoDB 7.0 or later; a replica set, for change streams and transactions"`
	Database        string        `envconfig:"MONGO_DB" default:"ax" desc:"name of the database"`
	HTTPAddr        string        `envconfig:"HTTP_ADDR" desc:"address that serves /healthz, /readyz and /metrics; port 0 takes a free one"`
	LogFormat       string        `envconfig:"LOG_FORMAT" default:"text" oneof:"text,json" desc:"form of the log lines on standard error"`
	LogLevel        string        `envconfig:"LOG_LEVEL" default:"info" oneof:"debug,info,warn,error" desc:"least severe level that is logged"`
	StopTimeout     time.Duration `envconfig:"STOP_TIMEOUT" default:"10s" min:"1s" max:"10m" desc:"time to stop in order after a signal; what has not ended by then is abandoned"`
	TestClockOffset time.Duration `envconfig:"TEST_CLOCK_OFFSET" default:"0s" min:"-87600h" max:"87600h" desc:"for tests: shifts this process's wall clock, and must change nothing but the times in its logs"`
}

// WithNATS is the configuration of a service that needs NATS beside the database.
type WithNATS struct {
	Common
	NATSURL string `envconfig:"NATS_URL" required:"true" secret:"true" desc:"address of NATS 2.11 or later with JetStream; several are separated by commas"`
}

// Config is a pointer to a struct that embeds Common, or WithNATS.
type Config interface{ common() *Common }

func (c *Common) common() *Common { return c }

// prefix begins every variable of ax.
const prefix = "AX"

// services are the programs that have variables of their own (AX_<NAME>_...), with the address each serves its health
// and metrics on when AX_HTTP_ADDR is not set: all differ, so that all can run on one machine as they are.
var services = map[string]string{
	"gateway":    "127.0.0.1:7800",
	"submitter":  "127.0.0.1:7801",
	"dispatcher": "127.0.0.1:7802",
	"reaper":     "127.0.0.1:7803",
	"notifier":   "127.0.0.1:7804",
	"cron":       "127.0.0.1:7805",
	"worker":     "127.0.0.1:0",
	"cli":        "127.0.0.1:0",
}

// ownPrefix begins the variables that only the given service reads.
func ownPrefix(service string) string {
	return prefix + "_" + strings.ToUpper(service) + "_"
}

// ConfigError lists everything that is wrong with a service's configuration.
type ConfigError struct {
	Service  string
	Problems []string // sentences, each naming the variable; none shows a secret
}

func (e *ConfigError) Error() string {
	noun := "problems"
	if len(e.Problems) == 1 {
		noun = "problem"
	}
	return fmt.Sprintf("%d %s in the configuration of the %s:\n  - %s",
		len(e.Problems), noun, e.Service, strings.Join(e.Problems, "\n  - "))
}

// Load fills spec, a pointer to a struct, from the environment. Each field has a tag `envconfig:"NAME"` and is read
// from AX_NAME; further tags are `default`, `min` and `max` (of durations and numbers; without min they must be
// positive), `oneof` (allowed texts, separated by commas), `required:"true"` (texts only), `secret:"true"` (the value
// is shown nowhere) and `desc`. A field that already holds a value keeps it when neither the variable nor a default is
// given.
//
// A variable that begins with AX_ and means nothing to this service is refused, because a misspelt setting that is
// ignored is found too late. What can be told only by looking closer, or at several variables together, is refused by the method
// Check() error that spec may have; each of the errors that it joins is one problem.
// Variables of other services (AX_REAPER_..., say) may be there and are passed over. The error
// is a *ConfigError with all problems at once.
func Load(service string, spec any) error {
	fields, err := gather(service, spec)
	if err != nil {
		return err
	}
	problems := unknownVariables(service, fields)
	parse, err := fill(spec, fields)
	if err != nil {
		return err
	}
	problems = append(problems, parse...)
	if c, ok := spec.(Config); ok && c.common().HTTPAddr == "" {
		c.common().HTTPAddr = defaultHTTPAddr(service)
	} else if ok && !listenable(c.common().HTTPAddr) {
		problems = append(problems, fmt.Sprintf("AX_HTTP_ADDR=%q is not allowed; it takes host:port, such as %s or :7800, with a port from 0 to 65535",
			c.common().HTTPAddr, defaultHTTPAddr(service)))
	}
	if c, ok := spec.(interface{ Check() error }); ok && len(problems) == 0 {
		if err := c.Check(); err != nil {
			problems = append(problems, each(err)...)
		}
	}
	if len(problems) > 0 {
		return &ConfigError{Service: service, Problems: problems}
	}
	return nil
}

// each takes joined errors apart.
func each(err error) (sentences []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			sentences = append(sentences, each(one)...)
		}
		return sentences
	}
	return []string{err.Error()}
}

// listenable tells whether an address is of the form that can be listened on. Whether this machine has it shows only then.
func listenable(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func defaultHTTPAddr(service string) string {
	if addr, ok := services[service]; ok {
		return addr
	}
	return "127.0.0.1:0"
}
