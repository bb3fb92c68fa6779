#!/usr/bin/env bash
# Builds the real Kubernetes servers that the cluster tests run (tests/systems/peers) into the folder `peers` of the
# target folder, which is shared by all clones. Minutes and 2 GB of caches the first time; silent when nothing has
# changed since.
#
#   scripts/peers.sh            all of them
#   scripts/peers.sh apiserver  etcd and kube-apiserver alone
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/go/bin
patient=$PWD/scripts/patient.sh
module=tests/systems/peers
out=$({ go env GOVERSION && cat "$module"/*/*.go; } | scripts/cached.sh peers "$module"/go.{mod,sum})

# Of two test runs at once, one builds and the other waits.
exec 9>"$out/lock"
flock 9
cd "$module"
# Names of programs that were compiled in a hurry, for one test that only needs them to work. Whatever else runs them
# measures them too, and gets optimised ones.
hurried=$out/hurried
touch "$hurried"
compile=all=-dwarf=false
anew=
if [[ ${1:-} == apiserver ]]; then
	set -- ./etcd ./kube-apiserver
	compile+=" -N -l"
else
	set -- ./*/
	anew=$(cat "$hurried")
fi
absent=()
for program; do
	name=$(basename "$program")
	[[ -x $out/$name && " ${anew//$'\n'/ } " != *" $name "* ]] || absent+=("./$name")
done
((${#absent[@]} > 0)) || exit 0

echo "peers: building ${absent[*]#./} (once; takes minutes)" >&2
# Servers and clients of Kubernetes compare versions; a build from the module alone has none.
version=$("$patient" go list -m -f '{{.Version}}' k8s.io/kubernetes)
link="-s -w -X k8s.io/component-base/version.gitVersion=$version"
rm -rf "$out/new"
# Compilers run side by side and are done in seconds, so clearing up their memory costs more than it gives back.
CGO_ENABLED=0 GOGC=off GOFLAGS=-mod=readonly \
	"$patient" go build -trimpath -buildvcs=false -gcflags "$compile" -ldflags "$link" -o "$out/new/" "${absent[@]}"
# Renamed over what runs, which goes on with what it has.
mv "$out"/new/* "$out"
if [[ $compile == *-N* ]]; then printf '%s\n' "${absent[@]#./}" >>"$hurried"; else : >"$hurried"; fi
