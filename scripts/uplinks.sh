#!/usr/bin/env bash
# Runs the tests of ways between node and network in a kernel of Debian's, emulated, which has every kind of device.
# Needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup vm
target=${CARGO_TARGET_DIR:-target}
kernel=6.12

log=$(mktemp)
trap 'rm -f "$log"' EXIT
files=()
for file in holdfast bed_child deps/clients/tunnel; do
	files+=(--with "$target/debug/$file")
done
files+=(--with "$(command -v nft)")
status=0
"$target/debug/vm" run --memory-mib 2048 --seconds 900 "${files[@]}" "$kernel" \
	"$("$target/debug/suite" programs tests/packets)" uplinks:: 2>&1 | tee "$log" || status=$?
sum() { sed -nE "s/^test result: .* ([0-9]+) $1;.*/\1/p" "$log" | tail -n 1; }
passed=$(sum passed)
failed=$(sum failed)
# This kernel has each kind of device, so a test that tried nothing has failed.
untried=$(grep -c '^not tried: ' "$log") || true
echo "$((${passed:-0} - untried)) passed, $((${failed:-1} + untried)) failed"
exit "$status"
