#!/usr/bin/env bash
# Builds Flannel for clusters with `CNI=flannel`: its daemon, the program that installs its configuration, its CNI
# plugin. They lie in the folder `flannel` of the target folder, shared by all clones, as a layer of the disks of
# machines: /opt/flannel. Needs Go. Minutes the first time; silent when nothing has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
patient=$PWD/scripts/patient.sh
module=$PWD/tests/systems/conformance/flannel
out=$(go env GOVERSION | scripts/cached.sh flannel scripts/flannel.sh "$module"/{go.mod,go.sum} "$module"/plugin/*)

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
[[ ! -e $out/whole ]] || exit 0
echo "flannel: building its daemon (once; takes minutes)" >&2
bin=$out/layer/opt/flannel/bin
sources=$out/sources
export CGO_ENABLED=0 GOFLAGS=-mod=readonly

copy_sources() {
	local from
	from=$(cd "$module" && "$patient" go mod download -json github.com/flannel-io/flannel |
		sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	mkdir -p "$sources"
	cp -r "$from"/{cmd,pkg,main.go,go.mod,go.sum} "$sources/"
	chmod -R u+w "$sources"
}

# Without the backends of a cloud and of UDP: one needs the cloud's library, the other a C compiler at each node's libc.
leave_backends_out() {
	sed -i -E '/^\t_ "github.com\/flannel-io\/flannel\/pkg\/backend\/(tencentvpc|udp)"$/d' "$sources/main.go"
}

build() {
	local version
	version=$(sed -n 's/^require .* v//p' "$module/go.mod")
	mkdir -p "$bin"
	(cd "$sources" && "$patient" go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X github.com/flannel-io/flannel/pkg/version.Version=v$version" \
		-o "$bin/" . ./cmd/install_conf)
	mv "$bin/flannel" "$bin/flanneld"
	mv "$bin/install_conf" "$bin/install-conf"
	(cd "$module/plugin" && "$patient" go build -trimpath -buildvcs=false -ldflags "-s -w" \
		-o "$bin/flannel" github.com/containernetworking/plugins/plugins/meta/flannel)
}

rm -rf --one-file-system "$out/layer" "$sources"
copy_sources
leave_backends_out
build
rm -rf "$sources"
touch "$out/whole"
