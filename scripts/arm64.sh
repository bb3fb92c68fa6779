#!/usr/bin/env bash
# Runs a command where holdfast is compiled for arm64 on another machine: in a root file system of Debian that holds its
# Rust, its cross compiler, the libraries of arm64 and an emulator. The root is made once, in the target folder. Needs
# root.
#
#   scripts/arm64.sh COMMAND...
#
# The command finds this repository, the target folder and cargo's home at their own paths, and no network is needed.
# What is mounted for it is in a mount namespace of its own, and goes with it. No package of this machine changes.
set -euo pipefail
cd "$(dirname "$0")/.."
((EUID == 0)) || {
	echo "arm64: this machine compiles for arm64 in a root file system of its own, which needs root" >&2
	exit 77
}
scripts/setup arm64

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target} CARGO_HOME=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$CARGO_TARGET_DIR" "$CARGO_HOME"
CARGO_TARGET_DIR=$(realpath "$CARGO_TARGET_DIR")

# The first stable releases with a Rust that is new enough come after trixie. All architectures of a release are in
# step, those of sid are not, and libraries of two architectures have to be of one version.
release=forky
root=$CARGO_TARGET_DIR/roots/arm64
packages=(cargo clang gcc libc6-dev libelf-dev zlib1g-dev make pkg-config qemu-user
	gcc-aarch64-linux-gnu libc6-dev-arm64-cross libstd-rust-dev:arm64 libelf-dev:arm64 zlib1g-dev:arm64 libzstd-dev:arm64)
scripts/debian-root.sh "$root" "$release" "$(dpkg --print-architecture),arm64" "$(IFS=, && echo "${packages[*]}")"

# The inner shell expands what it gets by itself.
# shellcheck disable=SC2016
exec unshare --mount --propagation private bash -euc '
	root=$1
	shift
	for folder in /dev /proc "$PWD" "$CARGO_TARGET_DIR" "$CARGO_HOME"; do
		mkdir -p "$root$folder"
		mount --bind "$folder" "$root$folder"
	done
	exec chroot "$root" env --chdir="$PWD" PATH=/usr/sbin:/usr/bin "$@"
' arm64 "$root" "$@"
