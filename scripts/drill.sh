#!/usr/bin/env bash
# Disasters on a cluster of three nodes, while clients connect all the time (docs/drills.md). Needs root.
#
#   scripts/drill.sh [DRILL...]      the drills of these names, or all: a quarter of an hour
#   scripts/drill.sh propagation     a change at the apiserver until it is on every node, 200 times
#   scripts/drill.sh load            pods of Services of three sizes come, are replaced and go, as in clusterloader2
#   scripts/drill.sh start           five starts of a cluster with holdfast and with kube-proxy, in turns
#   scripts/drill.sh short           `kill` for 20 s on two nodes, with the holdfast of the tests: a part of the tests
# PROXY=nftables has the real kube-proxy in holdfast's place; NODES=2 is a smaller cluster; PACKETS has keys of
# holdfast's [packets], as for `make conformance`.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
other=$target/clusters/holdfast-other

# Another version for the upgrade: the same code, but its maps have another layout, so that it cannot adopt ours and we
# cannot adopt its.
build_other() {
	local tree=$target/clusters/other pins=daemon/datapath/src/pins.rs sum
	sum=$(git rev-parse HEAD)
	[[ $(cat "$other.stamp" 2>/dev/null) != "$sum" ]] || return 0
	rm -rf "$tree"
	mkdir -p "$tree"
	git archive HEAD | tar -x -C "$tree"
	sed -i 's/^\(pub const VERSION: u32 = \)[0-9]*;/\199;/' "$tree/$pins"
	grep -q '^pub const VERSION: u32 = 99;' "$tree/$pins"
	(cd "$tree" && CARGO_TARGET_DIR=$target/other cargo build --quiet --locked --profile test -p holdfast)
	install "$target/other/debug/holdfast" "$other"
	rm -rf "$tree"
	echo "$sum" >"$other.stamp"
}

scripts/conformance.sh build
if [[ ${1:-} == short ]]; then
	touch "$target/debug/holdfast"
	KILLS=20 NODES=2 exec "$target/debug/drill" run kill
fi
# The drills try this checkout: its last build is taken.
cargo build --quiet --release --locked -p holdfast
touch "$target/release/holdfast"
proxy=(--proxy "${PROXY:-holdfast}")
case ${1:-} in
propagation | load) exec "$target/debug/drill" "$@" "${proxy[@]}" ;;
start) exec "$target/debug/drill" start ;;
*)
	[[ ${PROXY:-holdfast} != holdfast ]] || build_other
	[[ -z ${PACKETS:-} ]] || proxy+=(--packets "$PACKETS")
	exec "$target/debug/drill" run "$@" "${proxy[@]}"
	;;
esac
