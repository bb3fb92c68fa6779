#!/usr/bin/env bash
# Makes the packages that tests install, of two versions of the same sources: an upgrade needs both.
#
#   scripts/test-packages.sh        in target/packages, as they are released
#   scripts/test-packages.sh quick  in target/packages-quick, from a binary that is neither small nor fast
#   scripts/test-packages.sh quick arm64    Debian's packages for arm64; on another machine that needs root
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup host
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
export PACKAGE_FOLDER=$target/packages
[[ ${1:-} != quick ]] || export PACKAGE_FOLDER=$target/packages-quick PACKAGE_PROFILE=test

next=${version%.*}.$((${version##*.} + 1))

both() {
	scripts/package.sh "$@"
	PACKAGE_VERSION=$next scripts/package.sh "$@"
}

HOLDFAST_BINARY=$(scripts/package-build.sh ${2:+"$2"})
export HOLDFAST_BINARY
if [[ ${2:-} == arm64 ]]; then
	# An emulated machine unpacks each byte of it.
	scripts/arm64.sh aarch64-linux-gnu-strip "$HOLDFAST_BINARY"
	both deb arm64
	exit
fi
# Where tests find the binary that the packages carry.
mkdir -p "$PACKAGE_FOLDER"
install "$HOLDFAST_BINARY" "$PACKAGE_FOLDER/holdfast"
for kind in deb rpm image; do both "$kind"; done
