#!/usr/bin/env bash
# Makes a root file system of Debian, unless it is there. Needs root.
#
#   scripts/debian-root.sh FOLDER RELEASE ARCHITECTURES PACKAGES      lists with commas; the first architecture is this machine's
set -euo pipefail
folder=$1
[[ ! -d $folder ]] || exit 0

# A half-made root is never taken for a whole one.
rm -rf "$folder.new"
mkdir -p "$(dirname "$folder")"
echo "making a root of Debian $2 in $folder (once)" >&2
# A mirror or a cache that has fallen behind serves too: its lists are signed all the same.
mmdebstrap --quiet --variant=minbase --architectures="$3" --include="$4" --aptopt='Acquire::Check-Valid-Until "false"' \
	"$2" "$folder.new" "deb http://deb.debian.org/debian $2 main" >&2
mv "$folder.new" "$folder"
