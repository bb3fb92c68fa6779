#!/usr/bin/env bash
# Builds kube-router for clusters with `CNI=kube-router`, and for tests that start it later for its policies alone. It
# lies with Debian's ipset, which it calls, in the folder `kube-router` of the target folder, shared by all clones, as a
# layer of the disks of machines: /opt/kube-router and /usr. Needs Go and root. Minutes the first time; silent when
# nothing has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
scripts/setup conformance
patient=$PWD/scripts/patient.sh
module=$PWD/tests/systems/conformance/kube-router
out=$(go env GOVERSION | scripts/cached.sh kube-router scripts/{kube-router,ipset}.sh "$module"/*)

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
[[ ! -e $out/whole ]] || exit 0
echo "kube-router: building it (once; takes minutes)" >&2
layer=$out/layer
sources=$out/sources
export CGO_ENABLED=0 GOFLAGS=-mod=readonly

copy_sources() {
	local from
	from=$(cd "$module" && "$patient" go mod download -json github.com/cloudnativelabs/kube-router/v2 |
		sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	mkdir -p "$sources"
	cp -r "$from"/{cmd,pkg,go.mod,go.sum} "$sources/"
	chmod -R u+w "$sources"
}

build() {
	local version
	version=$(sed -n 's/^require .* //p' "$module/go.mod")
	mkdir -p "$layer/opt/kube-router/bin"
	(cd "$sources" && "$patient" go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=$version" \
		-o "$layer/opt/kube-router/bin/" ./cmd/kube-router)
}

rm -rf --one-file-system "$layer" "$sources"
scripts/ipset.sh "$layer"
copy_sources
build
rm -rf "$sources"
touch "$out/whole"
