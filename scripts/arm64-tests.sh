#!/usr/bin/env bash
# Builds what runs in emulated machines of arm64: test programs, and what they start. All are static, so a guest needs
# none of their libraries. They lie in target/aarch64-unknown-linux-gnu/debug, and cargo's list of the test programs in
# target/aarch64-unknown-linux-gnu/suite, where `suite programs` finds it. Needs root, as scripts/arm64.sh does.
#
# The root file system of scripts/arm64.sh has Debian's newest clang. So a kernel that takes these programs takes what
# users compile with a new clang.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
machine=aarch64-unknown-linux-gnu
folder=$target/$machine/debug
list=$target/$machine/suite/built.json
mkdir -p "$folder" "${list%/*}"
scripts/arm64.sh clang --version | sed -n "1s/^/arm64: the programs are compiled by /p" >&2
# Only whole builds come here, and what cargo keeps for the next one costs time and a third of the room.
export CARGO_INCREMENTAL=0

# A test program links the daemon's own crates as the package does.
scripts/package-build.sh arm64 cargo test -p holdfast-datapath -p holdfast-tests --locked --quiet --target "$machine" \
	--features holdfast/static --no-run --lib --test host --test kernel --test programs \
	--message-format=json-render-diagnostics >"$list.new"
mv "$list.new" "$list"

scripts/arm64.sh aarch64-linux-gnu-gcc -O2 -Wall -Wextra -Werror -static -o "$folder/client" \
	tests/systems/clients/c/client.c
# An emulated machine reads each byte of them.
mapfile -t programs < <(CARGO_TARGET_DIR=$target/$machine "$target/debug/suite" programs '*')
scripts/arm64.sh aarch64-linux-gnu-strip "$folder"/{bed_child,client} "${programs[@]}"
