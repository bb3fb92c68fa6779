#!/usr/bin/env bash
# Makes a real HAProxy be there, for `make bench-peers`: Debian's package and the libraries that few machines have,
# unpacked into the target folder, because installing it would start one here. Exit code 3: there is none to be had.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/haproxy
packages=(haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 libpcre2-8-0)

[[ ! -x $out/usr/sbin/haproxy ]] || exit 0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || exit 3
echo "haproxy: fetching Debian's package (once)" >&2
rm -rf "$out.new"
mkdir -p "$out.new"
cd "$out.new"
apt-get -q download "${packages[@]}" >&2 || exit 3
for package in *.deb; do
	dpkg-deb -x "$package" .
done
rm -- *.deb
rm -rf "$out"
mv "$out.new" "$out"
