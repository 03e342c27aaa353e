package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	module   = "github.com/ax-scheduler/ax"
	mostLine = 600
)

// Check returns one sentence for each breach of a rule, in the order of the files.
func Check(files []File) []string {
	var out []string
	for _, f := range files {
		for _, rule := range []func(File) []string{form, ownImports, foreignImports} {
			for _, breach := range rule(f) {
				out = append(out, f.Path+": "+breach)
			}
		}
	}
	return append(out, insertTx(files)...)
}

// form holds what does not concern imports.
func form(f File) []string {
	var out []string
	if f.Lines > mostLine {
		out = append(out, fmt.Sprintf("has %d lines; over %d nobody reads a file whole, so split it by what its parts do", f.Lines, mostLine))
	}
	if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "base"}, f.Package) {
		out = append(out, fmt.Sprintf("package %s says nothing about what is in it, so anything ends up there; name it after what it does", f.Package))
	}
	if f.test() && !f.Synctest {
		for _, line := range f.Sleeps {
			out = append(out, fmt.Sprintf("line %d sleeps; a test that waits by the clock is slow on a fast machine and fails on a slow one, so wait for a condition with stacktest.Eventually or use testing/synctest", line))
		}
	}
	if !slices.ContainsFunc(carriesNATS, func(p string) bool { return f.dir() == p }) {
		for _, line := range f.NATS {
			out = append(out, fmt.Sprintf("line %d starts NATS in its own process; the library has data races of its own when it stops, which fail a run with the race detector, so use stacktest.NATS", line))
		}
	}
	return out
}

// carriesNATS are the packages that may run NATS in their own process.
var carriesNATS = []string{"internal/localstack", "cmd/ax", "examples/replay"}

// ownImports holds which part of ax may import which.
func ownImports(f File) []string {
	var out []string
	refuse := func(imported, why string) {
		out = append(out, fmt.Sprintf("imports %s: %s", imported, why))
	}
	service, verb := serviceOf(f.dir())
	for _, full := range f.Imports {
		imported, ours := strings.CutPrefix(full, module+"/")
		if !ours {
			continue
		}
		if other, _ := serviceOf(imported); other != "" && other != service {
			refuse(imported, "services meet in messages and documents only, so that each is deployed, scaled and rolled back alone")
		}
		if f.test() {
			continue
		}
		if slices.Contains([]string{"internal/task", "pkg/events"}, f.dir()) {
			refuse(imported, f.dir()+" is what all parts share and imports nothing of ours, so that it can be read and used by itself")
		}
		if verb && !slices.ContainsFunc(append([]string{path.Join("services", service)}, verbMayImport...), func(p string) bool { return below(imported, p) }) {
			refuse(imported, "a service's verb package reaches store and bus only through small interfaces it declares, so that its rules can be tested without them; main.go wires them")
		}
		if below(imported, "internal/localstack") && !below(f.dir(), "internal/localstack") && service != "" {
			refuse(imported, "a service runs against the servers it is given and does not carry servers of its own")
		}
		if imported == "internal/localstack/stacktest" && !below(f.dir(), "test") {
			refuse(imported, "stacktest is for tests")
		}
	}
	return out
}

// verbMayImport is what a verb package may know beside its own service: the domain, the messages, and pure logic that
// declares what it needs of store and bus as interfaces itself.
var verbMayImport = []string{"internal/task", "internal/intake", "internal/cronexpr", "internal/lead", "pkg/events"}

const natsServer = "github.com/nats-io/nats-server"

// technologies are libraries that only a few places may know.
var technologies = []struct {
	prefix string
	places []string
	why    string
}{
	{"go.mongodb.org/mongo-driver", []string{"internal/mongostore", "internal/localstack", "pkg/client", "bench", "test"},
		"the MongoDB driver is known to internal/mongostore alone (and to pkg/client for a caller's own transaction), so that every write is a guarded one"},
	{"github.com/nats-io/nats.go", []string{"internal/natsbus", "internal/localstack", "pkg/events", "pkg/worker", "pkg/client", "bench", "test"},
		"NATS is known to internal/natsbus and the packages that users import, so that streams and consumers are declared in one place"},
	{natsServer, []string{"internal/localstack"},
		"the embedded NATS server would make every binary 11 MB larger; only internal/localstack carries it"},
}

// foreignImports holds where a technology may be known. Tests may talk to the real thing, but not run a NATS of their own.
func foreignImports(f File) []string {
	var out []string
	for _, imported := range f.Imports {
		for _, t := range technologies {
			known := f.test() && t.prefix != natsServer || slices.ContainsFunc(t.places, func(p string) bool { return below(f.dir(), p) })
			if below(imported, t.prefix) && !known {
				out = append(out, fmt.Sprintf("imports %s: %s", imported, t.why))
			}
		}
	}
	return out
}

// insertTx keeps the MongoDB driver in pkg/client to one file.
func insertTx(files []File) []string {
	var users []string
	for _, f := range files {
		if !f.test() && below(f.dir(), "pkg/client") && slices.ContainsFunc(f.Imports, func(i string) bool { return below(i, "go.mongodb.org/mongo-driver") }) {
			users = append(users, f.Path)
		}
	}
	if len(users) < 2 {
		return nil
	}
	return []string{strings.Join(users, ", ") + ": the MongoDB driver is there in pkg/client for InsertTx only, so one file imports it"}
}

// serviceOf tells which service a folder belongs to, and whether it is a verb package rather than the main package.
func serviceOf(dir string) (service string, verb bool) {
	parts := strings.Split(dir, "/")
	if len(parts) < 2 || parts[0] != "services" {
		return "", false
	}
	return parts[1], len(parts) > 2
}

// below tells whether a folder or import path is parent or lies in it.
func below(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}
