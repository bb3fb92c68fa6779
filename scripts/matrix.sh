#!/usr/bin/env bash
# Runs the tests called kernel_… in Debian's kernels, emulated: one line for each kernel, and one for the page that
# shows what was observed. Needs no root: the tests are root in there.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup vm

# As the other rungs build them, so that nothing is built twice.
built=$(cargo test --workspace --locked --features holdfast-tests/root --no-run --lib --test 'kernel_*' \
	--test programs 2>&1) || {
	echo "$built"
	exit 1
}
# What meets the kernel itself; the rest of the tests, the rules, is the same on each.
tests='kernel_life|kernel_maps|kernel_sockets|kernel_shown|kernel_udp|kernel_refusals|holdfast_datapath|programs'
mapfile -t programs < <(sed -nE "s/^ *Executable .*\((.*\/($tests)-[0-9a-f]+)\)$/\1/p" <<<"$built")
"${CARGO_TARGET_DIR:-target}/debug/vm" matrix --page docs/kernels.md "${programs[@]}"
