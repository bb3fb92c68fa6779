#!/usr/bin/env bash
# Packs a folder into a tar, or with a name in gz into a compressed one: root's files, one time, one order. Equal files
# give equal bytes, wherever they are packed.
#
#   scripts/release-pack.sh FILE FOLDER [MEMBER]
set -euo pipefail
file=$1
compress=(cat)
[[ $file != *gz ]] || compress=(gzip -9 -n)
tar --create --directory "$2" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
	--numeric-owner --mode=u=rwX,go=rX "${3:-.}" | "${compress[@]}" >"$file.new"
mv "$file.new" "$file"
