# Two commands on a fresh machine: `make demo` and `make test`. The other targets are parts of them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
LAB := target/debug/lab
# a stale lockfile is an error
LOCKED := --locked
LAB_NAME ?= lab
# Number of labs for the end-to-end tests; each test has one to itself, and waits more than it computes. A lab takes half a
# core and 2.5 GiB, and wants 4. With four labs on two cores, `allocation_churn` loses pods for lack of processor time.
LABS ?= $(shell awk '/^MemAvailable/ {labs = 1; if ($$2 > 10485760) labs = 2; if ($$2 > 14680064) labs = 3; print labs}' /proc/meminfo)
# Cargo unifies features over the selected packages: selecting the whole workspace always builds each dependency once.
ALL := $(LOCKED) --workspace
# A virtual cluster takes 0.6 GiB and much of a core while it starts.
VIRTUAL_LABS ?= $(shell test $(LABS) -ge 2 && echo 2 || echo 1)
export GPUTENANCY_LAB_NAME := $(LAB_NAME)
export GPUTENANCY_LABS := $(LABS)

# The lab creates Linux namespaces and mounts. Without root, programs are built as the user and run with sudo.
ifneq ($(shell id -u),0)
SUDO := sudo -E env PATH=$(PATH) HOME=$(HOME) GPUTENANCY_LAB_NAME=$(LAB_NAME) GPUTENANCY_LABS=$(LABS)
TRIPLE := $(shell rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export CARGO_TARGET_$(TRIPLE)_RUNNER := $(SUDO)
endif

.PHONY: crds help demo test test-all virtual-clusters check bench gpu-test down prerequisites tools runtimes zig tenant-libraries peer-tools virtual-tools monitoring-tools queue-tools build test-programs images lab-up labs labs-count lab-test api end-to-end unit rules-test fmt fmt-check lint licences sbom

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 18

# without the programs that only tests need
demo: TOOLS := --lab
demo: lab-up ## a whole GPU platform on this machine: lab, chart, teams, a changed guarantee, and a virtual cluster if vCluster is built
	$(CARGO) run $(LOCKED) -q --bin demo

# Level gate: the tests that every change has to pass, listed in integration/levels; level full: all of them.
LEVEL ?= gate
NEXTEST := CARGO='$(CARGO)' integration/tools/nextest

# As many labs as memory allows before the first one runs.
labs-count:
	@echo $(LABS)

test: ## all checks of a change: format, clippy, licences, unit, property and lab tests, tests of the API server, end to end
	integration/tools/suite gate

test-all: ## every test there is, with 10,000 cases for each property
	integration/tools/suite full

check: fmt-check unit ## the fast subset: formatting, and the tests of the level that need no cluster

unit: tools runtimes zig ## unit and property tests, and all others that need no cluster
	$(NEXTEST) unit $(LEVEL) $(TEST)
	$(if $(TEST),,$(CARGO) test --locked --workspace --doc)

lab-test: tools build ## tests of the lab itself: traffic, power loss, network partitions, removal
	$(NEXTEST) lab $(LEVEL) $(TEST)

api: labs ## tests of what the API server decides, in LABS labs at once
	$(NEXTEST) api $(LEVEL) --test-threads $(LABS) $(TEST)

end-to-end: labs monitoring-tools queue-tools ## the end-to-end tests, in LABS labs at once; LEVEL=full for all but virtual clusters, TEST=demo:: for some of them
	$(NEXTEST) e2e $(LEVEL) --test-threads $(LABS) $(TEST)

virtual-clusters: LEVEL := full
virtual-clusters: virtual-tools ## all end-to-end tests of virtual clusters, with the real vCluster (builds it once, 13 minutes)
	@# the others would take the memory and the time of virtual clusters
	for n in $$(seq $$(($(VIRTUAL_LABS) + 1)) $(LABS)); do $(SUDO) $(LAB) down --name $(LAB_NAME)-$$n; done
	$(MAKE) labs LABS=$(VIRTUAL_LABS)
	GPUTENANCY_LABS=$(VIRTUAL_LABS) $(NEXTEST) virtual-clusters $(LEVEL) --test-threads $(VIRTUAL_LABS) $(TEST)

# vCluster takes longer to build than most measurements
VCLUSTER := vcluster vcluster-chart kine
PEERS := $(if $(BENCH),$(if $(filter virtual-clusters,$(BENCH)),$(VCLUSTER) vclusterctl) $(if $(filter virtual-clusters-fleet,$(BENCH)),vcluster-chart) $(if $(filter peer,$(BENCH)),capsule),capsule $(VCLUSTER) vclusterctl)

ifeq ($(BENCH),decoding)
# without a lab
bench:
	PROPTEST_CASES=1000000 $(CARGO) test $(ALL) --release --test crds --test decisions --test kubectl-gpu-tests --test agent decoding:: -- --nocapture --test-threads=1
else ifeq ($(BENCH),instructions)
# without a lab; of the library as it is shipped, so that the profile of the program that calls it does not matter
bench: tenant-libraries
	GPUTENANCY_BUILD=$(CURDIR)/target/tenant-libraries/$(shell uname -m) $(CARGO) bench $(LOCKED) --profile dev -p gputenancy-shim --bench limits -- instructions
else
bench: prerequisites tools peer-tools ## measurements, each next to a baseline of the same run; BENCH='peer 200' for one
	$(CARGO) build $(ALL) --release
	$(CARGO) build $(ALL)
	$(SUDO) $(LAB) down
	$(SUDO) $(LAB) up --profile release --require-images
	$(CARGO) run $(LOCKED) -q --release --bin bench -- $(BENCH)
endif

gpu-test: ## what the agent reads, limits of memory and compute, and MPS on this machine's GPU 0; PYTHON=/path/to/python3 has PyTorch
	$(CARGO) build $(LOCKED) --release -p gpu-test -p cuda-sim -p gputenancy-shim -p gputenancy-nvml-view
	$(SUDO) target/release/gpu-test --shim target/release/libgputenancy_cuda.so --view target/release/libgputenancy_nvml_view.so --work target/release/cuda-work --driver-root $(or $(DRIVER_ROOT),/) $(if $(PYTHON),--python $(PYTHON))

down: ## stop all labs and remove their files
	@if [ -x $(LAB) ]; then $(SUDO) $(LAB) down --all; else echo "no lab has been built here"; fi

# Prometheus, whose answers a test of level full reads
monitoring-tools: prerequisites
	@$(if $(filter full,$(LEVEL)),integration/tools/build prometheus promtool,true)

# Kueue with its chart, which tests of level full install in a lab
queue-tools: prerequisites
	@$(if $(filter full,$(LEVEL)),integration/tools/build kueue kueue-chart,true)

# vCluster of the version that is served; the tests of upgrades need the one before it as well
virtual-tools: prerequisites
	@integration/tools/build $(VCLUSTER) $(if $(filter full,$(LEVEL)),vcluster-0.36.0)

prerequisites: ## what the machine needs; Debian packages are installed
	@integration/tools/prerequisites

tools: prerequisites ## the Go programs of the lab (15 minutes once, then seconds); TOOLS='kubelet runc' for some
	@integration/tools/build $(TOOLS)

runtimes: prerequisites ## NVIDIA's CUDA runtimes, which tests load on the simulated driver
	@integration/tools/cudart/fetch

zig: prerequisites ## the linker of the libraries that run in tenants' containers
	@integration/tools/zig/fetch

tenant-libraries: zig ## the libraries that run in tenants' containers, as they are shipped; PROCESSOR=aarch64 for another one
	integration/tools/tenant-libraries $(PROCESSOR)

peer-tools: prerequisites ## what `bench` compares with: Capsule (4 minutes once), and vCluster with its command line (7 minutes and more, once)
	@$(if $(strip $(PEERS)),integration/tools/build $(PEERS),true)

build: prerequisites ## the project's programs
	$(CARGO) build $(ALL)

test-programs: prerequisites
	$(NEXTEST) build $(LEVEL)

images: tools build ## the lab's images, in its cache
	$(SUDO) $(LAB) images --require-images

lab-up: tools build ## a lab with two GPU nodes and one without; a running lab is kept and gets fresh images
	$(SUDO) $(LAB) up --keep --require-images

labs: lab-up ## as many labs as the end-to-end tests use
	pids=(); for n in $$(seq 2 $(LABS)); do $(SUDO) $(LAB) up --keep --require-images --name $(LAB_NAME)-$$n & pids+=($$!); done; \
	for pid in $${pids[@]+"$${pids[@]}"}; do wait $$pid; done

sbom: ## what is in the programs that are shipped, as CycloneDX, in target/sbom
	integration/tools/sbom

crds: ## generate the CRD manifests and the reference page of conditions and events from the types
	$(CARGO) run $(LOCKED) -q -p gputenancy-crds --features v1_36 --bin crdgen reasons docs/reference/conditions-and-events.md
	for folder in crds/generated helm/gputenancy/files/crds; do $(CARGO) run $(LOCKED) -q -p gputenancy-crds --features v1_36 --bin crdgen write $$folder; done

fmt: ## format the sources
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all --check

rules-test: prerequisites ## the chart's alerts: unit tests with promtool, and a test fails for each changed threshold
	@integration/tools/build promtool
	integration/tools/rules-test

lint: ## clippy, warnings are errors
	$(CARGO) clippy $(ALL) --all-targets -- -D warnings

licences: ## licences, banned crates and sources of all crates, also of those for other systems, which no build here downloads
	$(CARGO) fetch --quiet $(LOCKED)
	deny=$$(integration/tools/cargo-tool cargo-deny 0.20.2) && $$deny --offline --all-features check bans licenses sources
