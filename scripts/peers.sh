#!/usr/bin/env bash
# Builds the real Kubernetes servers that the cluster tests run (tests/peers) into the folder `peers` of the target
# folder. Minutes and 2 GB of caches the first time; silent when nothing has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/peers
mkdir -p "$out"
cd tests/peers

# Two test runs at once build once.
exec 9>"$out/lock"
flock 9
stamp=$({ go env GOVERSION && cat go.mod go.sum ./*/*.go; } | sha256sum)
[[ $(cat "$out/stamp" 2>/dev/null) != "$stamp" ]] || exit 0

echo "peers: building etcd and Kubernetes' servers (once; takes minutes)" >&2
# Servers and clients of Kubernetes compare versions; a build from the module alone has none.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
flags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
CGO_ENABLED=0 GOFLAGS=-mod=readonly nice -n 10 go build -trimpath -buildvcs=false -ldflags "$flags" -o "$out/" ./...
echo "$stamp" >"$out/stamp"
