#!/usr/bin/env bash
# Builds what tests of meshes and of DNS on the node run: Istio's own code that makes the rules of a pod's network, and
# CoreDNS. Both lie in the folder `mesh` of the target folder, which all clones share. Their versions and sums are in
# go.mod and go.sum of tests/systems/mesh. Needs Go. Minutes the first time; silent when nothing has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
patient=$PWD/scripts/patient.sh
modules=$PWD/tests/systems/mesh
out=$(go env GOVERSION | scripts/cached.sh mesh scripts/mesh.sh "$modules"/{istio,coredns}/*)

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
[[ ! -e $out/whole ]] || exit 0
echo "mesh: building Istio's rules and CoreDNS (once; takes minutes)" >&2
export CGO_ENABLED=0 GOFLAGS=-mod=readonly

build() {
	(cd "$modules/$1" && "$patient" go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$out/bin/$2" .)
}

mkdir -p "$out/bin"
build istio istio-rules
build coredns coredns
touch "$out/whole"
