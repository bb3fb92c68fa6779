#!/usr/bin/env bash
# Writes SHA256SUMS of a release: of all files but the repository's, which has sums of its own.
#
#   scripts/release-sums.sh FOLDER
set -euo pipefail
cd "$1"
find . -type f ! -path './repository/*' ! -name 'SHA256SUMS*' -printf '%P\0' | sort --zero-terminated |
	xargs --null sha256sum -- >SHA256SUMS.new
mv SHA256SUMS.new SHA256SUMS
