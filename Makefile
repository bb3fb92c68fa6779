# The front door. Each target is one line: the work is in scripts/ or in Rust.
# A target that does not work yet is not here.

SHELL := /bin/bash
.DEFAULT_GOAL := help
# rustup installs here, and a shell that was open before does not know it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

STEPS ?= 1000000
SECONDS ?= 60

.PHONY: help setup build run try quick test test-all part parts ran conformance drill host deb rpm image matrix check \
	release bench bench-peers scale simulate fuzz soak bless clean

help: ## Print this list.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## Install what is missing to build and test on this machine; silent when nothing is.
	@scripts/setup

build: ## Build the release binary, target/release/holdfast.
	@scripts/setup
	cargo build --release --locked -p holdfast

run: ## Build holdfast and run it with the demo in examples/demo, until Ctrl-C.
	@scripts/run.sh

try: ## An incident in the demo that `make run` started, from another terminal: what holdfast does, what clients get.
	@scripts/try.sh

quick: ## While you write: the laws of the rules, the house rules, lints of what you changed. Under a minute.
	@scripts/quick.sh

test: ## Run what proves a change; ends with `N passed, N failed`. SLOW=4: on a quarter of the processors; BUSY=8: beside busy loops.
	@scripts/test.sh test

test-all: ## Run every test that there is: also browsers, packages, other kernels, clusters. About an hour.
	@scripts/test.sh all

part: ## Run parts of the tests: PART=packets, PART="host@trixie page"; `make parts` lists them.
	@scripts/test.sh $(if $(filter due slow-turn,$(PART)),--seconds $(SECONDS)) $(PART)

parts: ## List the parts of the tests, and when each passed last.
	@scripts/test-programs.sh --quiet
	@$${CARGO_TARGET_DIR:-target}/debug/suite parts

mutants: ## Make the mistakes of tests/mutants.toml, and show that tests catch each; ONLY=text: those of some files.
	@scripts/mutants.sh $(if $(ONLY),--only $(ONLY))

ran: ## Take over into tests/ran.tsv what passed on this machine since the last landing.
	@scripts/test-programs.sh --quiet
	@$${CARGO_TARGET_DIR:-target}/debug/suite merge

conformance: ## Kubernetes' own tests in clusters, as root: SHORT=1 FOCUS= NODES= CNI= FAMILY= PROXY= PACKETS= KERNEL=.
	@$(if $(filter flannel%,$(CNI)),scripts/flannel.sh)
	@$(if $(filter kube-router calico,$(CNI)),scripts/$(CNI).sh)
	@$(if $(filter vpc,$(CNI)),scripts/vpc-cni.sh)
	@$(if $(KERNEL),scripts/emulated.sh $(KERNEL),scripts/conformance.sh $(if $(SHORT),short))

drill: ## Disasters on three nodes under clients that connect all the time, as root: DRILL=name PROXY=nftables PACKETS=.
	@$(if $(filter flannel%,$(CNI)),scripts/flannel.sh)
	@$(if $(filter kube-router calico,$(CNI)),scripts/$(CNI).sh)
	@$(if $(filter vpc,$(CNI)),scripts/vpc-cni.sh)
	@scripts/drill.sh $(DRILL)

host: ## The packages on booted systems, as root: from installation to purge.
	@scripts/test.sh package host machine

deb: ## Build the Debian package, target/packages/*.deb; for arm64: ARCH=arm64.
	@scripts/setup package
	@scripts/package.sh deb $(ARCH)

rpm: ## Build the RPM package, target/packages/*.rpm; for arm64: ARCH=arm64.
	@scripts/setup package
	@scripts/package.sh rpm $(ARCH)

image: ## Build the container image, target/packages/*.oci.tar, without a container runtime; for arm64: ARCH=arm64.
	@scripts/setup package
	@scripts/package.sh image $(ARCH)

release: ## Make a release, target/dist/VERSION: VERSION=1.0.0-rc.1 RELEASE_KEYS=folder; docs/release.md says more.
	@scripts/setup release
	@scripts/release.sh $(VERSION)

matrix: ## The kernel's tests in Debian's kernels, emulated; BLESS=1 rewrites the table in docs/kernels.md.
	@scripts/test-programs.sh --quiet
	@scripts/matrix.sh

check: ## Formatting, lints, licences and advisories, documentation, alerts, shell scripts.
	@scripts/check.sh

bench: ## Measure; docs/performance.md says what the figures mean.
	@scripts/setup
	cargo bench --locked -p holdfast-tests -p holdfast-datapath -p holdfast-knowledge

bench-peers: ## Measure beside kube-proxy and Cilium; writes docs/peers.md and its picture. As root, an hour.
	@scripts/bench-peers.sh

scale: ## Measure what large clusters cost a node, kube-proxy beside it; writes docs/scale.md. As root, under an hour.
	@scripts/scale.sh

simulate: ## Seeded random life with faults and crashes, checked at each step: STEPS=1000000 SEED=1.
	@scripts/setup
	cargo run --release --locked -p holdfast-laws --bin simulate -- --steps $(STEPS) $(if $(SEED),--seed $(SEED))

fuzz: ## Feed broken configuration, manifests, queries and DNS answers to the parsers, and as root packets to the programs: SECONDS=60.
	@scripts/setup
	cargo run --release --locked -p holdfast-tests --bin fuzz -- --seconds $(SECONDS)
	[ "$$(id -u)" != 0 ] || FUZZ_SECONDS=$(SECONDS) $(if $(SEED),SEED=$(SEED)) \
		cargo test --release --locked -p holdfast-datapath --lib packets::tests::fuzz

soak: ## Kill, grow and replace under clients that connect all the time, as root: SECONDS=60 SEED=1.
	@scripts/setup
	cargo build --release --locked -p holdfast -p holdfast-tests --bins
	target/release/soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bless: ## Rewrite the golden files from what the code says now; read the diff before you commit.
	@scripts/setup
	BLESS=1 UPDATE_EXPECT=1 cargo test --workspace --locked

clean: ## Remove what cargo built.
	cargo clean
