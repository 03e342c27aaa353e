package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/ax-scheduler/ax/internal/localstack"
	"github.com/ax-scheduler/ax/internal/process"
	"github.com/ax-scheduler/ax/pkg/worker"
)

const configurationHead = `# Configuration

<!-- Made by go run ./docs/gen from the configuration structs. Edit those, not this file. -->

Services and workers read environment variables that begin with ` + "`AX_`" + ` and nothing else: no files, no flags. Each program
prints its own list with ` + "`--help`" + `.

- A duration has a unit: ` + "`500ms`, `30s`, `5m`, `1h30m`" + `. Zero and negative values are refused unless the range says otherwise.
- A variable that begins with ` + "`AX_`" + ` and means nothing to the program is refused at the start, with the name it most resembles: a
  misspelt setting that is ignored is found too late. Variables of the other services (` + "`AX_REAPER_...`" + `) may stand in the same
  environment and are passed over, so one file can hold the settings of all.
- All problems are told at once, and the exit code is then 2. Secrets are never printed.
- There is nothing to set for a first run but the addresses of MongoDB and NATS. The defaults are what is tested and measured.
`

const configurationTail = `
## Command line

` + "`ax`" + ` takes flags (` + "`ax --help`" + `) and one variable: ` + "`AX_NATS_URL`" + `, the address of NATS, which ` + "`--nats`" + ` overrides. Default
` + "`nats://127.0.0.1:4222`" + `. ` + "`ax dev`" + ` also reads ` + "`AX_MONGO_URI`" + `: when it is set, that database is used instead of a
local one, see [local-database.md](local-database.md).

## Set in the code, not by a variable

| what | value |
|---|---|
| payload, result | 512 KiB of JSON each |
| timeout of an attempt, unless the submission says | 30 min; at most 168 h |
| attempts, losses, unless the submission says | 3 failures, 3 losses |
| kept history of a task | the newest 100 changes |
| sizes and ages of the streams | see [events.md](events.md#streams) |
| connections to MongoDB of each process | 16 for claims, reports and beats, 8 for inserts, 4 for change streams |
`

// configuration makes docs/configuration.md. Services are asked as an operator asks them, by --variables.
func configuration(ctx context.Context, root, _ string) (string, error) {
	var b strings.Builder
	b.WriteString(configurationHead)
	own := map[string][]process.Variable{}
	var shared []process.Variable
	readers := map[string][]string{} // of the shared ones
	for _, name := range localstack.ServiceNames {
		all, err := variables(ctx, root, name)
		if err != nil {
			return "", err
		}
		for _, v := range all {
			if v.Shared {
				if readers[v.Name] == nil {
					shared = append(shared, v)
				}
				readers[v.Name] = append(readers[v.Name], name)
			} else {
				own[name] = append(own[name], v)
			}
			if v.Name == "AX_HTTP_ADDR" {
				own[name] = append(own[name], v)
			}
		}
	}
	b.WriteString("\n## Every service\n\n")
	for i := range shared {
		if shared[i].Name == "AX_HTTP_ADDR" {
			shared[i].Default = "" // each has its own, told below
			shared[i].Description += "; the default differs by service, see below"
		}
		if by := readers[shared[i].Name]; len(by) < len(localstack.ServiceNames) {
			shared[i].Description += "; read by " + strings.Join(by, ", ") + " only"
		}
	}
	table(&b, shared)
	for _, name := range localstack.ServiceNames {
		fmt.Fprintf(&b, "\n## %s%s\n\n", strings.ToUpper(name[:1]), name[1:])
		table(&b, own[name])
	}
	b.WriteString("\n## Workers\n\nRead by `worker.FromEnv`. A program that fills `worker.Options` itself may name its settings as it likes.\n\n")
	table(&b, process.Variables("worker", &worker.Env{}))
	b.WriteString(configurationTail)
	return b.String(), nil
}

// variables asks a service for its variables.
func variables(ctx context.Context, root, service string) ([]process.Variable, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "./services/"+service, "--variables")
	cmd.Dir = root
	var problem bytes.Buffer
	cmd.Stderr = &problem
	// A variable of the caller's, such as GOFLAGS=-race, is none of the service's, but AX_ ones are not read by --variables anyhow.
	cmd.Env = os.Environ()
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask the %s for its variables: %w: %s", service, err, problem.String())
	}
	var all []process.Variable
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("variables of the %s: %w", service, err)
	}
	return all, nil
}

func table(b *strings.Builder, all []process.Variable) {
	b.WriteString("| variable | default | takes | what it is |\n|---|---|---|---|\n")
	for _, v := range all {
		given := "`" + v.Default + "`"
		switch {
		case v.Required:
			given = "required"
		case v.Default == "":
			given = ""
		}
		what := v.Description
		if v.Secret {
			what += " (secret: shown nowhere)"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", v.Name, given, cell(strings.Replace(v.Range, " with a unit (such as 500ms, 30s or 5m)", "", 1)), cell(what))
	}
}

// cell makes text fit into a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
