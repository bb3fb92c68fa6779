#!/usr/bin/env bash
# Builds Helm into the folder `helm` of the target folder, which is shared by all clones: no distribution of the tests
# has it. Minutes the first time; silent when it is there. Prints the program's path.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/local/go/bin:$PATH
version=v4.3.2
scripts/setup go
patient=$PWD/scripts/patient.sh
out=$(go env GOVERSION | scripts/cached.sh helm scripts/helm.sh)

# Of two runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
if [[ ! -x $out/helm ]]; then
	echo "helm: building $version (once; takes minutes)" >&2
	# Outside of any module, so Helm's own versions of libraries hold; Go compares their sums with its public log.
	(cd "$out" && CGO_ENABLED=0 GOBIN=$out/new GOFLAGS='' GOGC=off "$patient" go install -trimpath \
		-gcflags all=-dwarf=false -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version" \
		"helm.sh/helm/v4/cmd/helm@$version")
	mv "$out/new/helm" "$out/helm"
fi
echo "$out/helm"
