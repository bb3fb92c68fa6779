#!/usr/bin/env bash
# Puts Debian's ipset into a layer of the disks of machines, for programs there that call it. Needs root.
#
#   scripts/ipset.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
layer=$(realpath -m "$1")
debian=$(mktemp -d)
trap 'rm -rf --one-file-system "$debian"' EXIT

# The release is that of the machines' root (scripts/conformance.sh), which has the other libraries.
scripts/debian-root.sh "$debian/root" bookworm "$(dpkg --print-architecture)" ipset
mkdir -p "$layer/usr/sbin"
cp -P "$debian/root/usr/sbin/ipset" "$layer/usr/sbin/"
cd "$debian/root"
cp -P --parents usr/lib/*/libipset.so.* "$layer/"
