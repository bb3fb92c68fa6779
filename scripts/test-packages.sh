#!/usr/bin/env bash
# Makes the packages that tests install, of two versions of the same sources: an upgrade needs both.
#
#   scripts/test-packages.sh        in target/packages, as they are released
#   scripts/test-packages.sh quick  in target/packages-quick, from a binary that is neither small nor fast
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup host
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
export PACKAGE_FOLDER=$target/packages
[[ ${1:-} != quick ]] || export PACKAGE_FOLDER=$target/packages-quick PACKAGE_PROFILE=test

HOLDFAST_BINARY=$(scripts/package-build.sh)
export HOLDFAST_BINARY
# Where tests find the binary that the packages carry.
mkdir -p "$PACKAGE_FOLDER"
install "$HOLDFAST_BINARY" "$PACKAGE_FOLDER/holdfast"
for kind in deb rpm image; do
	scripts/package.sh "$kind"
	PACKAGE_VERSION=${version%.*}.$((${version##*.} + 1)) scripts/package.sh "$kind"
done
