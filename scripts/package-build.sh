#!/usr/bin/env bash
# Builds the one static binary that packages carry, and prints its path. Equal sources give equal bytes, wherever they lie.
#
#   scripts/package-build.sh            for this machine
#   scripts/package-build.sh arm64      for arm64, with Debian's cross compiler and arm64 libraries
#
# Static means glibc, libelf and zlib from this distribution's own packages. musl would need all three built anew, and its
# allocator is slower; nothing here needs what a static glibc cannot do (users and names are looked up by number).
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-$(uname -m)} in
x86_64 | amd64) machine=x86_64 linker=cc ;;
aarch64 | arm64) machine=aarch64 linker=aarch64-linux-gnu-gcc ;;
*)
	echo "package: no packages for $1" >&2
	exit 64
	;;
esac
# On arm64 itself the cross compiler has the plain name too.
[[ $machine != "$(uname -m)" ]] || linker=cc
target=$machine-unknown-linux-gnu
name=${target//-/_}

# Paths of this machine stay out of the binary.
flags="-C target-feature=+crt-static --remap-path-prefix=$PWD=/holdfast"
flags+=" --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
# Newer versions of libelf need zstd, which then has to be static too.
[[ $(pkg-config --static --libs libelf 2>/dev/null) != *zstd* ]] || flags+=" -C link-arg=-lzstd"
export "CARGO_TARGET_${name^^}_RUSTFLAGS=$flags" "CARGO_TARGET_${name^^}_LINKER=$linker"
export LIBBPF_SYS_LIBRARY_PATH=/usr/lib/$machine-linux-gnu:/usr/lib64
cargo build --quiet --release --locked --target "$target" -p holdfast --features static >&2
echo "${CARGO_TARGET_DIR:-target}/$target/release/holdfast"
