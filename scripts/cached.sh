#!/usr/bin/env bash
# Makes a folder of the target folder one that all clones share: a link into the cache, `$XDG_CACHE_HOME/holdfast` or
# `~/.cache/holdfast`. Prints its path. The caller fills it, under a lock of its own.
#
#   scripts/cached.sh NAME FILE...    the folder NAME, for what is made from these files and the standard input
#
# The key is the sum of what it is made from, so two clones with different sources never fill the same folder. The
# three that were used last are kept, and what was used within a day, because another run may be using it.
set -euo pipefail
cd "$(dirname "$0")/.."
kept=3

name=$1
shift
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
key=$(cat -- "$@" - | sha256sum | head -c 16)
store=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/$name
mkdir -p "$store/$key" "$(dirname "$target/$name")"
touch "$store/$key"

# The folder that an older checkout made in place of the link.
[[ -L $target/$name ]] || rm -rf --one-file-system "${target:?}/$name"
ln -sfn "$store/$key" "$target/$name"
find "$store" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' | sort -rn | tail -n "+$((kept + 1))" |
	while read -r _ old; do
		[[ -z $(find "$old" -maxdepth 0 -mmin +1440) ]] || rm -rf --one-file-system "$old"
	done
echo "$store/$key"
