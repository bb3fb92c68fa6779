#!/usr/bin/env bash
# Builds Cilium for the tests of docs/migrate-from-cilium.md and for `make bench-peers`: its agent, command line, CNI
# plug-in and the benchmark of its control plane, and the clang that the agent calls. They lie in the folder `cilium` of
# the target folder, shared by all clones, as a layer of the disks of machines: /opt/cilium and /opt/pods. Needs root. A
# quarter of an hour the first time; silent when nothing has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
scripts/setup conformance
patient=$PWD/scripts/patient.sh
module=tests/systems/conformance/cilium
out=$(go env GOVERSION | scripts/cached.sh cilium scripts/cilium.sh "$module"/*)

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
[[ ! -e $out/whole ]] || exit 0
echo "cilium: building its agent (once; takes minutes)" >&2
benchmark=pkg/loadbalancer/benchmark
layer=$out/layer
cilium=$layer/opt/cilium
sources=$out/sources
export CGO_ENABLED=0 GOFLAGS=-mod=readonly

# The module without what is not compiled.
copy_sources() {
	local from
	from=$(cd "$module" && "$patient" go mod download -json github.com/cilium/cilium | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	mkdir -p "$sources"
	tar -C "$from" --exclude=./Documentation --exclude=./examples --exclude=./install --exclude=./test \
		--exclude=testdata -cf - . | tar -C "$sources" -xf -
	tar -C "$from" -cf - "$benchmark/testdata" | tar -C "$sources" -xf -
	chmod -R u+w "$sources"
}

# The agent without its BGP control plane, and the command line without its questions about that, so that no library for
# BGP is needed. Nothing else of the agent uses it; three handlers of its API are left with nobody behind them.
leave_bgp_out() (
	cd "$sources"
	rm cilium-dbg/cmd/bgp_{peer,route,route_policy}_get.go
	sed -i -E '/^\t"github.com\/cilium\/cilium\/pkg\/bgp"$/d; /^\t\tbgp\.Cell,$/d' daemon/cmd/cells.go
	# The backquotes are Go's.
	# shellcheck disable=SC2016
	sed -i -E 's/^(\tBgpGetBgp(Peers|RoutePolicies|Routes)Handler +bgp\.[A-Za-z]+)$/\1 `optional:"true"`/' \
		api/v1/server/server.go
	go mod edit -droprequire github.com/osrg/gobgp/v4
)

build() {
	local version
	version=$(sed -n 's/^require .* v//p' "$module/go.mod")
	mkdir -p "$cilium/usr/bin" "$layer/opt/pods/bin"
	(cd "$sources" && "$patient" go build -buildvcs=false \
		-ldflags "-s -w -X github.com/cilium/cilium/pkg/version.ciliumVersion=$version" \
		-o "$cilium/usr/bin/" ./daemon ./cilium-dbg ./plugins/cilium-cni)
	mv "$cilium/usr/bin/daemon" "$cilium/usr/bin/cilium-agent"
	mv "$cilium/usr/bin/cilium-cni" "$layer/opt/pods/bin/"
	(cd "$sources" && "$patient" go build -buildvcs=false -o "$cilium/usr/bin/cilium-lb-benchmark" "./$benchmark/cmd")
}

# What the agent compiles for each node, and the kinds of objects that its operator would make known.
copy_data() {
	cp -r "$sources/bpf" "$cilium/"
	rm -r "$cilium"/bpf/{tests,complexity-tests}
	cat "$sources"/pkg/k8s/apis/cilium.io/client/crds/v2*/*.yaml >"$cilium/crds.yaml"
}

# Programs that the agent calls, with all that they need: the pod has them in place of its image's.
make_root() {
	scripts/debian-root.sh "$out/debian" bookworm "$(dpkg --print-architecture)" clang-19,iproute2,iptables,ipset
	mkdir -p "$cilium"
	mv "$out/debian/usr" "$cilium/"
	ln -s clang-19 "$cilium/usr/bin/clang"
	rm -rf --one-file-system "$out"/debian{,.asked} "$cilium"/usr/share/{doc,man,locale}
}

rm -rf --one-file-system "$layer" "$sources" "$out"/debian{,.asked}
make_root
copy_sources
leave_bgp_out
build
copy_data
rm -rf "$sources"
touch "$out/whole"
