#!/usr/bin/env bash
# Makes a root file system of Debian, unless it is there as it is asked for. Needs root.
#
#   scripts/debian-root.sh FOLDER RELEASE ARCHITECTURES PACKAGES
# Lists have commas; this machine's architecture comes first.
set -euo pipefail
folder=$1 release=$2 architectures=$3 packages=$4

asked="$release $architectures $packages"
[[ ! -d $folder || $(cat "$folder.asked" 2>/dev/null) != "$asked" ]] || exit 0
# A half-made root is never taken for a whole one, nor an old one for what is asked now. A run that was killed may have
# left this machine's own /proc and /sys mounted in it, which are not removed.
rm -rf --one-file-system "$folder" "$folder.new" "$folder.asked"
mkdir -p "$(dirname "$folder")"
echo "making a root of Debian $release in $folder (once)" >&2
# A mirror or a cache that has fallen behind serves too: its lists are signed all the same.
mmdebstrap --quiet --variant=minbase --architectures="$architectures" --include="$packages" \
	--aptopt='Acquire::Check-Valid-Until "false"' \
	"$release" "$folder.new" "deb http://deb.debian.org/debian $release main" >&2
mv "$folder.new" "$folder"
echo "$asked" >"$folder.asked"
