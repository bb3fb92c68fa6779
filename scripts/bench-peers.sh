#!/usr/bin/env bash
# Measures holdfast beside the real kube-proxy, in both its modes, a real Cilium agent and HAProxy, on this machine and
# in the same run, and writes the tables of docs/peers.md and the picture docs/pictures/peers.svg. Root; three quarters
# of an hour on a machine that does nothing else, and as much again where the peers were never built.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup root
PATH=$PATH:/usr/local/go/bin
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scripts/peers.sh
scripts/cilium.sh
scripts/haproxy.sh
cargo build --release --locked -p holdfast

# The programs beside benchmarks unwind as these do, so that what all of them need is built once.
export CARGO_PROFILE_RELEASE_PANIC=unwind
export HOLDFAST_FIGURES=$target/figures.tsv
rm -f "$HOLDFAST_FIGURES"
cargo bench --locked -p holdfast-tests --bench packets
for part in measure programming publish; do
	cargo bench --locked -p holdfast-tests --bench peers -- $part
done
