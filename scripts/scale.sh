#!/usr/bin/env bash
# Measures what clusters of any size cost a node: holdfast at 1,000, 10,000 and 100,000 services, what a table of that
# size asks of people, and the real kube-proxy beside it at a real apiserver at the sizes it can do. Writes the tables
# of docs/scale.md. Root; under an hour on a machine that does nothing else, and ten minutes more where the peers were
# never built.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup root
PATH=$PATH:/usr/local/go/bin
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scripts/peers.sh
cargo build --release --locked -p holdfast

# The programs beside benchmarks unwind as these do, so that what all of them need is built once.
export CARGO_PROFILE_RELEASE_PANIC=unwind
export HOLDFAST_FIGURES=$target/scale.tsv
rm -f "$HOLDFAST_FIGURES"
for part in node asked encoded; do
	cargo bench --locked -p holdfast-tests --bench scale -- $part
done
cargo bench --locked -p holdfast-tests --bench peers -- measure
cargo bench --locked -p holdfast-tests --bench scale -- publish
