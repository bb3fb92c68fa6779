#!/usr/bin/env bash
# Builds the real Kubernetes servers that the cluster tests run (tests/peers) into the folder `peers` of the target
# folder, which is shared by all clones. Minutes and 2 GB of caches the first time; silent when nothing has changed
# since.
#
#   scripts/peers.sh            all of them
#   scripts/peers.sh apiserver  etcd, kube-apiserver and kube-controller-manager alone
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/go/bin
out=$({ go env GOVERSION && cat tests/peers/*/*.go; } | scripts/cached.sh peers tests/peers/go.mod tests/peers/go.sum)

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
cd tests/peers
if [[ ${1:-} == apiserver ]]; then
	set -- ./etcd ./kube-apiserver ./kube-controller-manager
else
	set -- ./*/
fi
absent=()
for program; do
	name=$(basename "$program")
	[[ -x $out/$name ]] || absent+=("./$name")
done
((${#absent[@]} > 0)) || exit 0

echo "peers: building ${absent[*]#./} (once; takes minutes)" >&2
# Servers and clients of Kubernetes compare versions; a build from the module alone has none.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
flags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
rm -rf "$out/new"
CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags "$flags" -o "$out/new/" "${absent[@]}"
mv "$out"/new/* "$out"
