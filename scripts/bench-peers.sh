#!/usr/bin/env bash
# Measures holdfast beside the real kube-proxy, in both its modes, and a real Cilium agent, on this machine and in the
# same run, and writes the tables of docs/peers.md and the picture docs/pictures/peers.svg. Root; three quarters of an
# hour on a machine that does nothing else, and as much again where the peers were never built.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup root
PATH=$PATH:/usr/local/go/bin
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scripts/peers.sh
scripts/cilium.sh
cargo build --release --locked -p holdfast

export HOLDFAST_FIGURES=$target/figures.tsv
rm -f "$HOLDFAST_FIGURES"
cargo bench --locked -p holdfast-tests --bench packets
for part in measure programming publish; do
	cargo bench --locked -p holdfast-tests --bench peers -- $part
done
