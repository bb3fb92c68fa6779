#!/usr/bin/env bash
# Kubernetes' own tests in clusters of real nodes (tests/systems/conformance), and what those clusters are made of.
# Needs root.
#
#   scripts/conformance.sh build  programs, root of the machines, images: into the folder `conformance` of the target
#                                 folder. A quarter of an hour the first time; silent when nothing has changed since
#   scripts/conformance.sh        runs everything, topology after topology: more than half an hour
#   scripts/conformance.sh short  one test of each kind, within ten minutes
# The environment chooses, as for `make conformance`: FOCUS NODES CNI FAMILY PROXY PACKETS BLESS.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
servers=tests/systems/peers
nodes=tests/systems/conformance
peers=$(realpath -m "${CARGO_TARGET_DIR:-target}")/peers
# Shared by all clones with the same sources.
made_from=(scripts/conformance.sh "$servers"/{go.mod,go.sum,tools.go} "$nodes"/{node,dns}/*)
out=$(go env GOVERSION | scripts/cached.sh conformance "${made_from[@]}" "$nodes/src/images.rs")
patient=$PWD/scripts/patient.sh
kubernetes=k8s.io/kubernetes
containerd=github.com/containerd/containerd/v2
export CGO_ENABLED=0 GOFLAGS=-mod=readonly

# How packages are compiled: as Go does it, but for Kubernetes' own.
compile=

# program FOLDER NAME PACKAGE [LINKER FLAGS]: builds a program of the module in FOLDER.
program() {
	(cd "$1" && "$patient" go build -trimpath -buildvcs=false -tags no_btrfs,no_zfs,no_devmapper,no_tracing \
		-gcflags "$compile" -ldflags "-s -w ${4:-}" -o "$out/bin/$2" "$3")
}

version() { (cd "$1" && "$patient" go list -m -f '{{.Version}}' "$2"); }
sources() { (cd "$1" && "$patient" go list -m -f '{{.Dir}}' "$2"); }

# What a stage is made from, as one sum: the version of Go, and files.
sum_of() { { go env GOVERSION && cat "$@"; } | sha256sum; }

# stage NAME SUM COMMAND...: runs the command unless it was done with this sum.
stage() {
	local name=$1 sum=$2
	shift 2
	[[ $(cat "$out/$name.stamp" 2>/dev/null) != "$sum" ]] || return 0
	echo "conformance: building $name (once; takes minutes)" >&2
	rm -f "$out/images.stamp"
	"$@"
	echo "$sum" >"$out/$name.stamp"
}

# Kubernetes' tests, and the images that they ask for.
build_tests() {
	# As scripts/peers.sh has it: two thousand packages are in both, and are compiled once.
	local from flags compile=all=-dwarf=false
	from=$(sources "$servers" "$kubernetes")
	flags="-X k8s.io/component-base/version.gitVersion=$(version "$servers" "$kubernetes")"
	program "$servers" agnhost "$kubernetes/test/images/agnhost" \
		"-X main.Version=$(cat "$from/test/images/agnhost/VERSION")"
	program "$servers" regression-issue-74839 "$kubernetes/test/images/regression-issue-74839"
	program "$servers" ginkgo github.com/onsi/ginkgo/v2/ginkgo
	(cd "$servers" && "$patient" go test -c -trimpath -buildvcs=false -gcflags "$compile" -ldflags "-s -w $flags" \
		-o "$out/bin/e2e.test" "$kubernetes/test/e2e")
	gcc -Os -static -o "$out/bin/pause" "$from/build/pause/linux/pause.c"
	install -D -m 644 -t "$out/porter" "$from"/test/images/agnhost/porter/localhost.{crt,key}
}

# The container runtime and the network of pods.
build_node() {
	local name plugins=github.com/containernetworking/plugins/plugins
	for name in containerd containerd-shim-runc-v2 ctr; do
		program "$nodes/node" "$name" "$containerd/cmd/$name" \
			"-X $containerd/version.Version=$(version "$nodes/node" "$containerd")"
	done
	for name in ipam/host-local main/bridge main/loopback main/ptp meta/portmap; do
		program "$nodes/node" "cni/${name##*/}" "$plugins/$name"
	done
}

build_dns() { program "$nodes/dns" coredns .; }

# runc comes from Debian: it needs libseccomp. The rest is what kubelet, proxies and tests call, and what nodes
# need that have systemd as their first process.
make_root() {
	local first=systemd,systemd-sysv,dbus,bpftool
	local tools=iproute2,iptables,nftables,conntrack,procps,curl,wget,ethtool,netcat-openbsd,bind9-dnsutils,iperf
	scripts/debian-root.sh "$out/root" bookworm "$(dpkg --print-architecture)" \
		"runc,$tools,kmod,tcpdump,strace,busybox-static,$first"
}

run() { "${CARGO_TARGET_DIR:-target}/debug/conformance" "$@"; }

# Of two runs at once, one builds and the other waits.
lock() {
	mkdir -p "$out/bin/cni"
	exec 9>"$out/lock"
	flock 9
}

programs() {
	stage tests "$(sum_of "$servers"/{go.mod,go.sum,tools.go} scripts/conformance.sh)" build_tests
	stage node "$(sum_of "$nodes"/node/*)" build_node
	stage dns "$(sum_of "$nodes"/dns/*)" build_dns
	make_root
}

build() {
	lock
	scripts/setup conformance
	scripts/peers.sh
	programs
	cp -lf "$peers"/{etcd,kube*,load-balancer} "$out/bin/"
	stage images "$(sum_of "$out"/{tests,dns}.stamp "$out/root.asked" "$nodes/src/images.rs")" \
		run images "$out"
	exec 9>&-
}

scripts/test-programs.sh --quiet
build
[[ ${1:-} != build ]] || exit 0
# This checkout is tested, by its last build: that of the tests for the short form, else a release.
target=${CARGO_TARGET_DIR:-target}
if [[ ${1:-} == short ]]; then
	touch "$target/debug/holdfast"
else
	cargo build --quiet --release --locked -p holdfast
	touch "$target/release/holdfast"
fi

choice=()
[[ ${1:-} != short ]] || choice+=(--short)
for option in FOCUS NODES CNI FAMILY PROXY PACKETS; do
	[[ -z ${!option:-} ]] || choice+=("--${option,,}" "${!option}")
done
[[ -z ${BLESS:-} ]] || choice+=(--bless)
run run "${choice[@]}"
