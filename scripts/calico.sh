#!/usr/bin/env bash
# Builds Calico for clusters with `CNI=calico`: its node program with Felix in it, its CNI plug-ins, what installs them,
# and its kinds of objects. They lie with Debian's ipset, which Felix calls, in the folder `calico` of the target
# folder, shared by all clones, as a layer of the disks of machines: /opt/calico and /usr. Needs Go and root. Ten
# minutes the first time; silent when nothing has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
scripts/setup conformance
patient=$PWD/scripts/patient.sh
module=$PWD/tests/systems/conformance/calico
out=$(go env GOVERSION | scripts/cached.sh calico scripts/{calico,ipset}.sh "$module"/*)

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
[[ ! -e $out/whole ]] || exit 0
echo "calico: building its node program (once; takes minutes)" >&2
layer=$out/layer
calico=$layer/opt/calico
sources=$out/sources
# Without C, Felix has no eBPF mode, which is not what is tested.
export CGO_ENABLED=0 GOFLAGS=-mod=readonly

# The module's release, by its notes.
version() {
	basename -a "$sources"/release-notes/v*-release-notes.md | sed 's/-release-notes.md//' | sort -V | tail -n 1
}

# The repository has `api` in a folder that is not part of its module. The same code is a module of its own.
copy_sources() {
	local from api
	from=$(cd "$module" && "$patient" go mod download -json github.com/projectcalico/calico |
		sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	api=$(sed -n 's/^\tgithub.com\/projectcalico\/api //p' "$module/go.mod")
	mkdir -p "$sources"
	cp -r "$from"/. "$sources/"
	chmod -R u+w "$sources"
	grep '^github.com/projectcalico/api ' "$module/go.sum" >>"$sources/go.sum"
	(cd "$sources" && go mod edit -replace "github.com/projectcalico/api=github.com/projectcalico/api@$api")
}

build() {
	local release name=github.com/projectcalico/calico
	release=$(version)
	mkdir -p "$calico/bin" "$calico/cni"
	(cd "$sources" && "$patient" go build -trimpath -buildvcs=false -ldflags "-s -w \
		-X $name/node/pkg/lifecycle/startup.VERSION=$release -X $name/node/buildinfo.GitVersion=$release \
		-X $name/felix/buildinfo.GitVersion=$release" -o "$calico/bin/" ./node/cmd/calico-node)
	(cd "$sources" && "$patient" go build -trimpath -buildvcs=false -ldflags "-s -w -X main.VERSION=$release" \
		-o "$calico/cni/" ./cni-plugin/cmd/calico ./cni-plugin/cmd/install)
	ln "$calico/cni/calico" "$calico/cni/calico-ipam"
	cp "$sources/manifests/crds.yaml" "$calico/"
}

rm -rf --one-file-system "$layer" "$sources"
scripts/ipset.sh "$layer"
copy_sources
build
rm -rf "$sources"
touch "$out/whole"
