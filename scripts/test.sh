#!/usr/bin/env bash
# Builds all test programs and runs parts of the tests: `test`, `all`, `due`, or names of tests/parts.toml. Ends with
# one line, `N passed, N failed`; a part that cannot run here is named with its reason before that.
#
#   scripts/test.sh test
#   scripts/test.sh host@trixie packets
#   SLOW=4 scripts/test.sh test        on a quarter of each processor, as root
#   BUSY=8 scripts/test.sh units       beside eight busy loops
set -euo pipefail
cd "$(dirname "$0")/.."
# As root also what tests run in beds of their own, and what lists the machine before and after them.
if ((EUID == 0)); then scripts/setup root; else scripts/setup; fi
# Go's own archive is in no PATH by itself.
PATH=$PATH:/usr/local/go/bin
begun=$SECONDS
if ! scripts/test-programs.sh; then
	echo "error: the tests cannot be built"
	echo "0 passed, 1 failed"
	exit 1
fi
slowdown=(${SLOW:+--slow "$SLOW"} ${BUSY:+--busy "$BUSY"})
exec "${CARGO_TARGET_DIR:-target}/debug/suite" run --build $((SECONDS - begun)) "${slowdown[@]}" "$@"
