#!/usr/bin/env bash
# Runs the tests called kernel_… in Debian's kernels, emulated: a line for each kernel, and one for its column of
# docs/kernels.md. Needs no root: the tests are root in there.
#
#   scripts/matrix.sh          in all of them
#   scripts/matrix.sh 6.1      in one
#   scripts/matrix.sh rules    the rules of packets, which each kernel that loads the programs has alike, in the oldest
#   scripts/matrix.sh rules-2  one of three shares of them
#   scripts/matrix.sh arm64 [6.1]   in kernels of arm64, a test for each program, hook and format; compiling needs root
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
architecture=amd64 built=$target
if [[ ${1:-} == arm64 ]]; then
	architecture=arm64 built=$target/aarch64-unknown-linux-gnu
	shift
	scripts/arm64-tests.sh
fi
scripts/setup vm "$architecture"

# The tests that meet the kernel itself; all others, the tests of rules, are the same on each.
mapfile -t programs < <(CARGO_TARGET_DIR=$built "$target/debug/suite" programs \
	datapath/lib datapath/kernel tests/kernel tests/programs)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
run() {
	"$target/debug/vm" --architecture "$architecture" "$@" -- "${programs[@]}" 2>&1 | tee -a "$log" || status=$?
}
case $architecture${1:-} in
*rules) run rules ;;
*rules-*) run rules --share "${1#rules-}" ;;
*) run matrix --page docs/kernels.md "${@/#/--kernel=}" ;;
esac
[[ $architecture${1:-} != amd64 ]] || run rules
sum() {
	awk -v word="$1" '
		/^kernel [^:]*: / { for (i = 2; i <= NF; i++) if ($i ~ "^" word) n += $(i - 1) }
		END { print n + 0 }' "$log"
}
echo "$(sum passed) passed, $(sum failed) failed"
exit "$status"
