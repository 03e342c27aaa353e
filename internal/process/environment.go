package process

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/agext/levenshtein"
	"github.com/kelseyhightower/envconfig"
)

// environment guards what fill does to the process's environment.
var environment sync.Mutex

// fill lets envconfig set the fields and returns what is wrong with the values. envconfig stops at the first value it
// cannot read, so such a variable is noted, hidden and the rest tried again; the environment is as before at the end.
func fill(spec any, fields []field) (problems []string, err error) {
	environment.Lock()
	defer environment.Unlock()
	var restore []func()
	defer func() {
		for _, undo := range slices.Backward(restore) {
			undo()
		}
	}()
	hide := func(name string) { restore = append(restore, unset(name)) }

	unreadable := map[string]bool{}
	for _, f := range fields {
		// envconfig also reads a name without its prefix (LOG_LEVEL for AX_LOG_LEVEL), which is not meant for ax.
		hide(strings.TrimPrefix(f.Name, prefix+"_"))
		if f.Required && os.Getenv(f.Name) == "" {
			problems = append(problems, fmt.Sprintf("%s is not set: %s", f.Name, f.Description))
			hide(f.Name)
			unreadable[f.Name] = true
			// envconfig would end at the missing value.
			if err := os.Setenv(f.Name, ""); err != nil {
				return nil, fmt.Errorf("read the environment: %w", err)
			}
		}
	}
	for {
		err := envconfig.Process(prefix, spec)
		if err == nil {
			break
		}
		var parse *envconfig.ParseError
		if !errors.As(err, &parse) || os.Getenv(parse.KeyName) == "" && unreadable[parse.KeyName] {
			return nil, fmt.Errorf("read the environment: %w", err)
		}
		if _, given := os.LookupEnv(parse.KeyName); !given {
			return nil, fmt.Errorf("the default of %s cannot be read: %w", parse.KeyName, parse.Err)
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.Name == parse.KeyName })
		problems = append(problems, fields[i].refusal(os.Getenv(parse.KeyName)))
		unreadable[parse.KeyName] = true
		hide(parse.KeyName)
	}
	for _, f := range fields {
		if !unreadable[f.Name] && !f.inRange() {
			value, given := os.LookupEnv(f.Name)
			if !given {
				return nil, fmt.Errorf("the default of %s is outside of its own range (%s)", f.Name, f.Range)
			}
			problems = append(problems, f.refusal(value))
		}
	}
	return problems, nil
}

// refusal is the sentence for a value that is not allowed.
func (f field) refusal(value string) string {
	if f.Secret {
		return fmt.Sprintf("%s has a value that is not allowed; it takes %s", f.Name, f.Range)
	}
	return fmt.Sprintf("%s=%q is not allowed; it takes %s", f.Name, value, f.Range)
}

// unset removes a variable and returns what puts it back.
func unset(name string) (restore func()) {
	old, had := os.LookupEnv(name)
	_ = os.Unsetenv(name) // fails only for names that cannot be variables
	return func() {
		if had {
			_ = os.Setenv(name, old)
		} else {
			_ = os.Unsetenv(name)
		}
	}
}

// unknownVariables returns a sentence for each variable that begins with AX_ and means nothing to this service.
func unknownVariables(service string, fields []field) []string {
	env := os.Environ()
	known := map[string]bool{}
	for name := range sharedNames {
		known[name] = true
	}
	for _, f := range fields {
		known[f.Name] = true
	}
	var out []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix+"_") || known[name] || ofAnother(service, name) || injected(name) {
			continue
		}
		out = append(out, fmt.Sprintf("%s is not a variable of the %s; did you mean %s?", name, service, nearest(service, name, known)))
	}
	slices.Sort(out)
	return out
}

// ofAnother tells whether the variable belongs to another service, which is the one to judge it.
func ofAnother(service, name string) bool {
	for other := range services {
		if other != service && strings.HasPrefix(name, ownPrefix(other)) {
			return true
		}
	}
	return false
}

var injectedName = regexp.MustCompile(`^(AX_[A-Z0-9_]+?)_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// injected tells whether Kubernetes set the variable: for a Service named ax-reaper it gives every container of the
// namespace AX_REAPER_SERVICE_HOST, AX_REAPER_PORT and more.
func injected(name string) bool {
	m := injectedName.FindStringSubmatch(name)
	if m == nil {
		return false
	}
	_, ok := os.LookupEnv(m[1] + "_SERVICE_HOST")
	return ok
}

// nearest is the known name that looks most like the given one. Unless the name has this service's own prefix, those
// of the others count too, with the rest of the name as it is: AX_REPAER_X is a misspelt AX_REAPER_X also to a service
// that does not know the variable.
func nearest(service, name string, known map[string]bool) string {
	candidates := slices.Collect(maps.Keys(known))
	if parts := strings.SplitN(name, "_", 3); len(parts) == 3 && !strings.HasPrefix(name, ownPrefix(service)) {
		for other := range services {
			if other != service {
				candidates = append(candidates, ownPrefix(other)+parts[2])
			}
		}
	}
	slices.Sort(candidates) // equal distances give the same answer every time
	return slices.MinFunc(candidates, func(a, b string) int {
		return levenshtein.Distance(name, a, nil) - levenshtein.Distance(name, b, nil)
	})
}

var userInfo = regexp.MustCompile(`://\S*@`)

// Redact hides the user and password of every connection string in a text.
func Redact(text string) string {
	return userInfo.ReplaceAllString(text, "://***@")
}
