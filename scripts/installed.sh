#!/usr/bin/env bash
# Makes the package and the container image of two versions, and does on the nodes of a cluster what docs/install.md
# says, while clients connect all the time (tests/conformance/tests/installed). Needs root. Arguments go to the tests: a
# filter.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/conformance.sh build

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(realpath "$target")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
HOLDFAST_BINARY=$(scripts/package-build.sh)
export HOLDFAST_BINARY
# A second version of the same sources is what an upgrade needs.
for kind in image deb; do
	scripts/package.sh "$kind"
	PACKAGE_VERSION=${version%.*}.$((${version##*.} + 1)) scripts/package.sh "$kind"
done

# The client that connects, and a daemon for clusters that have one from the start.
scripts/test-programs.sh --quiet
export HOLDFAST_PACKAGES=$target/packages HOLDFAST_DIALER=$target/debug/bed_child
exec cargo test --workspace --locked --features holdfast-tests/root,holdfast-conformance/cluster \
	--test installed -- --test-threads 2 --show-output "$@"
