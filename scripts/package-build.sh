#!/usr/bin/env bash
# Builds the one static binary that packages carry, and prints its path. Equal sources give equal bytes, wherever they
# lie.
#
#   scripts/package-build.sh            for this machine
#   scripts/package-build.sh arm64      for arm64; on another machine in a root file system of scripts/arm64.sh
#   scripts/package-build.sh arm64 COMMAND...    runs that instead, with the same libraries and flags
#
# Static means glibc, libelf and zlib from this distribution's own packages. musl would need all three built anew, and
# its allocator is slower; nothing here needs what a static glibc cannot do (users and names are looked up by number).
# PACKAGE_PROFILE=test builds it without what makes it small and fast, in a fourth of the time: for tests of the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
# No byte of the binary depends on it, and libraries in C are compiled anew whenever it changes.
unset SOURCE_DATE_EPOCH
profile=${PACKAGE_PROFILE:-release}

case ${1:-$(uname -m)} in
x86_64 | amd64) machine=x86_64 ;;
aarch64 | arm64) machine=aarch64 ;;
*)
	echo "package: no packages for $1" >&2
	exit 64
	;;
esac
target=$machine-unknown-linux-gnu
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}
mkdir -p "$CARGO_HOME" "$CARGO_TARGET_DIR"
CARGO_TARGET_DIR=$(realpath "$CARGO_TARGET_DIR")

where=() linker=cc
if [[ $machine != "$(uname -m)" ]]; then
	[[ $machine == aarch64 ]] || {
		echo "package: packages for $machine are built on $machine" >&2
		exit 64
	}
	where=(scripts/arm64.sh) linker=aarch64-linux-gnu-gcc
	# The root file system of scripts/arm64.sh has no network.
	cargo fetch --quiet --locked >&2
fi

# Newer versions of libelf hold a crc32 of their own beside zlib's, with a wider length. The binary does not need it.
libraries=$CARGO_TARGET_DIR/$target/libraries
mkdir -p "$libraries"
# shellcheck disable=SC2016
"${where[@]}" sh -euc 'cp "$("$1" -print-file-name=libelf.a)" "$2" && ar d "$2/libelf.a" crc32.o' \
	sh "$linker" "$libraries"

# Paths of this machine stay out of the binary.
flags="-C target-feature=+crt-static --remap-path-prefix=$PWD=/holdfast"
flags+=" --remap-path-prefix=$CARGO_TARGET_DIR=/target --remap-path-prefix=$CARGO_HOME=/cargo"
# Newer versions of libelf need zstd, which then has to be static too; by this name no linker takes the other one.
[[ $("${where[@]}" pkg-config --static --libs libelf 2>/dev/null) != *zstd* ]] || flags+=" -C link-arg=-l:libzstd.a"
name=${target//-/_}
export "CARGO_TARGET_${name^^}_RUSTFLAGS=$flags" "CARGO_TARGET_${name^^}_LINKER=$linker"
export "LIBBPF_SYS_LIBRARY_PATH_$name=$libraries:/usr/lib/$machine-linux-gnu:/usr/lib64"
# Tests of another architecture are built as its package is.
[[ $# -lt 2 ]] || exec "${where[@]}" "${@:2}"
"${where[@]}" cargo build --quiet --profile "$profile" --locked --target "$target" -p holdfast --features static >&2
binary=$CARGO_TARGET_DIR/$target/${profile/test/debug}/holdfast
# The packages depend on no other package, so the binary may load no library.
[[ $(readelf --wide --program-headers "$binary") != *INTERP* ]] || {
	echo "package: $binary is not static" >&2
	exit 1
}
echo "$binary"
