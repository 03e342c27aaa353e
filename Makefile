# ax: `make` lists what can be done.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The race detector needs a C compiler.
RACE := $(shell command -v cc >/dev/null && echo -race)
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X github.com/ax-scheduler/ax/internal/process.Version=$(VERSION)

# Temporary files of a run go to a folder of its own, so that nothing stays behind, however the run ends.
WITH_TMP := tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; export TMPDIR="$$tmp";

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## fetch the Go modules and a local database (its first build takes 5-7 minutes)
	@go mod download
	@scripts/local-db ensure

# Tests that move the database's clock need libfaketime; where it cannot be installed they are skipped and say so.
.PHONY: test-deps
test-deps: deps
	@if ! ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing the system package faketime"; \
	    log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	    { apt-get install -y faketime || { apt-get update && apt-get install -y faketime; }; } >"$$log" 2>&1 \
	      || { tail -5 "$$log"; echo "no faketime: tests that move the database's clock are skipped"; }; \
	  else \
	    echo "no faketime (system package): tests that move the database's clock are skipped"; \
	  fi; \
	fi

.PHONY: build
build: ## build all binaries into dist/
	@mkdir -p dist
	go build -ldflags '$(LDFLAGS)' -o dist/ ./cmd/... ./services/... ./test/natsd

# Unit and contract tests run with the race detector; what drives whole systems of processes runs after them, without. At its end
# a program with the race detector sleeps for a second unless told otherwise, and so does each service that a test runs. Those of whole
# systems mostly wait for something, so more of them run side by side than there are cores.
.PHONY: test
test: test-deps ## run all tests, after setting up what they need (under 15 minutes on 2 cores)
	@$(WITH_TMP) \
	unit=$$(go list ./... | grep -v '/ax/test/'); \
	echo "go test $(RACE) (unit and contract tests)"; \
	GORACE=atexit_sleep_ms=0 go test $(RACE) -shuffle=on -timeout 10m $$unit; \
	echo "go test ./test/... (whole systems of processes)"; \
	go test -shuffle=on -timeout 12m -p 1 -parallel 4 ./test/...

FUZZTIME := 30s

.PHONY: fuzz
fuzz: ## feed what reads input with random input, FUZZTIME (30s) each
	@$(WITH_TMP) grep -rE --include='*_test.go' '^func Fuzz' cmd internal pkg services | sed -E 's,^(.*)/[^/]*:func (Fuzz[A-Za-z0-9]+).*,\1 \2,' | sort | \
	while read -r folder name; do \
	  echo "fuzzing $$folder $$name for $(FUZZTIME)"; \
	  if ! go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "./$$folder" > "$$TMPDIR/fuzz.out" 2>&1; then \
	    cat "$$TMPDIR/fuzz.out"; \
	    if grep -q 'Failing input' "$$TMPDIR/fuzz.out" || ! grep -q 'context deadline exceeded' "$$TMPDIR/fuzz.out"; then exit 1; fi; \
	    echo "no input failed: go test took the end of its own time for a failure"; \
	  fi; \
	  tail -n 3 "$$TMPDIR/fuzz.out"; \
	done

.PHONY: mutations
mutations: deps ## take the guards away one at a time: a test must fail for each (a quarter of an hour)
	@$(WITH_TMP) go run ./test/mutations $(if $(ONLY),-only '$(ONLY)')

.PHONY: lint
lint: ## check format, vet, staticcheck and the import rules
	@unformatted=$$(gofmt -l .); \
	[ -z "$$unformatted" ] || { echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	go test -count=1 ./internal/archtest

.PHONY: fmt
fmt: ## format the Go sources
	gofmt -w .

.PHONY: dev
dev: build deps ## run the whole system on this machine until Ctrl-C
	dist/ax dev

.PHONY: demo
demo: ## replay recorded traffic, kill a worker, account for every task (1-4 minutes, the first run some more)
	@echo "compiling; the first run takes minutes: it fetches and compiles what ax is made of"
	@$(MAKE) --no-print-directory build
	go run ./examples/replay $(if $(DATA),--data $(DATA))

.PHONY: chaos
chaos: deps ## break whole systems by a script made from SEED for MINUTES of faults, and judge what they did
	@$(WITH_TMP) go run ./test/chaos -seed $(or $(SEED),1) -minutes $(or $(MINUTES),5)

.PHONY: bench
bench: build deps ## measure ax beside the ceiling of this machine, in one run
	go run ./bench $(if $(STAGES),-stages $(STAGES))$(if $(LIMITS),-limits)
