# Two commands on a fresh machine: `make demo` and `make test`. Everything else is a part of them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
LAB := target/debug/lab
# a stale lockfile is an error and not a surprise
LOCKED := --locked
LAB_NAME ?= lab
# Cargo unites the features of the packages it is asked for: asking always for the whole workspace, and then for some of its
# targets, builds each dependency once.
ALL := $(LOCKED) --workspace
tests_of = $(patsubst %.rs,--test %,$(notdir $(wildcard $(1)/tests/*.rs)))
export GPUTENANCY_LAB_NAME := $(LAB_NAME)

# The lab makes namespaces and mounts. Without root, programs are built as the user and only run with sudo.
ifneq ($(shell id -u),0)
SUDO := sudo -E env PATH=$(PATH) HOME=$(HOME) GPUTENANCY_LAB_NAME=$(LAB_NAME)
TRIPLE := $(shell rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export CARGO_TARGET_$(TRIPLE)_RUNNER := $(SUDO)
endif

.PHONY: crds help demo test check bench down prerequisites tools build images lab-up lab-test unit fmt fmt-check lint

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 18

demo: lab-up ## a whole GPU platform on this machine, from nothing: lab, chart, two teams, a changed demand
	$(CARGO) run $(LOCKED) -q --bin demo

test: unit lab-test lab-up ## all tests: unit, property, lab, end to end
	$(CARGO) test $(ALL) $(call tests_of,integration/e2e) -- --test-threads=1

check: fmt-check unit ## the fast subset: formatting, and every test that needs no cluster

bench: prerequisites tools ## measured figures, each as a ratio within the run
	$(CARGO) build $(ALL) --release
	$(CARGO) build $(ALL)
	$(SUDO) $(LAB) down
	$(SUDO) $(LAB) up --profile release --require-images
	$(CARGO) run $(LOCKED) -q --release --bin bench

down: ## end all labs and remove everything of them
	@if [ -x $(LAB) ]; then $(SUDO) $(LAB) down --all; else echo "no lab has been built here"; fi

prerequisites: ## what the machine needs; Debian packages are installed
	@integration/tools/prerequisites

tools: prerequisites ## the Go programs of the lab (20 minutes once, then seconds); TOOLS='kubelet runc' for some
	@integration/tools/build $(TOOLS)

build: prerequisites ## the project's programs
	$(CARGO) build $(ALL)

images: tools build ## the lab's images, packed into the cache
	$(SUDO) $(LAB) images --require-images

lab-up: tools build ## a lab with two GPU nodes and one without; one that runs is kept, with fresh images
	$(SUDO) $(LAB) up --keep --require-images

lab-test: tools build ## tests of the lab itself: traffic, power loss, cut cables, nothing left behind
	$(CARGO) test $(ALL) $(call tests_of,integration/lab) -- --test-threads=1

# the conformance tests of the simulated driver run NVIDIA's own programs
unit: tools ## unit and property tests of all crates
	$(CARGO) test $(ALL) --lib --bins
	$(CARGO) test $(ALL) --exclude e2e --exclude lab --test '*'

crds: ## write the manifests of the kinds, from the types, to where they are read
	for folder in crds/generated helm/gputenancy/files/crds; do $(CARGO) run $(LOCKED) -q -p gputenancy-crds --features v1_36 --bin crdgen write $$folder; done

fmt: ## format the sources
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all --check

lint: ## clippy, warnings are errors
	$(CARGO) clippy $(ALL) --all-targets -- -D warnings
