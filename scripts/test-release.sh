#!/usr/bin/env bash
# Makes what the tests of releases verify and install, in target/release-test, from the binary that
# scripts/test-packages.sh left in target/packages-quick:
#
#   first   this version, signed
#   next    the version after it, signed; its repository has both
#   again   this version in another clone, not signed
#
# A release is made from what is committed: changes that are not have no part in it.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup release
repository=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/release-test
architecture=$(dpkg --print-architecture)
version=$(git show HEAD:Cargo.toml | sed -n 's/^version = "\(.*\)"/\1/p' | head -n 1)
next=${version%.*}.$((${version##*.} + 1))
rm -rf "$work"
mkdir -p "$work/binaries"
cp "$target/packages-quick/holdfast" "$work/binaries/$architecture"
export RELEASE_BINARIES=$work/binaries RELEASE_ARCHITECTURES=$architecture

# make_release FOLDER VERSION CLONE
make_release() {
	(cd "$3" && env CARGO_TARGET_DIR="$work/target" scripts/release.sh "$2")
	mv "$work/target/dist/$2" "$work/$1"
	rm -r "$work/target"
}

git clone --quiet "$repository" "$work/clone"
git clone --quiet "$repository" "$work/a clone elsewhere"
make_release again "$version" "$work/a clone elsewhere"
scripts/release-keys.sh "$work/keys" unprotected
export RELEASE_KEYS=$work/keys
make_release first "$version" "$work/clone"

cd "$work/clone"
git grep --files-with-matches --fixed-strings "$version" -- Cargo.toml Cargo.lock contrib |
	xargs sed -i "s/$version/$next/"
git -c user.name=holdfast -c user.email=packages@holdfast.io commit --quiet --all --message "Call this version $next"
RELEASE_FORMER=$work/first make_release next "$next" "$work/clone"
rm -rf "$work/clone" "$work/a clone elsewhere" "$work/binaries"
