#!/usr/bin/env bash
# Prints what the static binary of an architecture is made with that is neither of this repository nor of crates.io: the
# compilers, and the static libraries of the distribution that it holds. For each a line with its kind, name, package or
# version, and sum. Needs Debian's dpkg, in which the packages are looked up.
#
#   scripts/release-inputs.sh ARCHITECTURE
set -euo pipefail
cd "$(dirname "$0")/.."
where=() linker=cc
if [[ $1 == arm64 && $(uname -m) != aarch64 ]]; then
	where=(scripts/arm64.sh) linker=aarch64-linux-gnu-gcc
fi

# This is the text of a shell where the binary is compiled; scripts/package-build.sh takes zstd by the same condition.
# shellcheck disable=SC2016
"${where[@]}" sh -euc '
	linker=$1
	package() {
		owner=$(dpkg --search "$1" | cut -d " " -f 1 | sed "s/:$//")
		dpkg-query --show --showformat "\${source:Package}\t\${Version}\t\${Package}\t\${Architecture}" "$owner"
	}
	library() {
		file=$(realpath "$("$linker" -print-file-name="$1")")
		printf "library\t%s\t%s\t%s\n" "${1%.a}" "$(package "$file")" "$(sha256sum "$file" | cut -d " " -f 1)"
	}
	tool() {
		printf "tool\t%s\t%s\t%s\n" "$1" "$3" "$(sha256sum "$(realpath "$2")" | cut -d " " -f 1)"
	}
	for file in libc.a libgcc.a libgcc_eh.a libelf.a libz.a; do library "$file"; done
	case $(pkg-config --static --libs libelf) in *zstd*) library libzstd.a ;; esac
	tool rustc "$(rustc --print sysroot)/bin/rustc" "$(rustc --version)"
	for name in clang "$linker"; do tool "$name" "$(command -v "$name")" "$("$name" --version | head -n 1)"; done
' sh "$linker"
