#!/usr/bin/env bash
# Checks the alerts of contrib/prometheus with Prometheus' own promtool, and runs their tests.
#
# It is taken from PATH; without one, and on the Debian family, from Debian's package, which is unpacked into the target
# folder: installing it would start a Prometheus here. Exit code 3: there is none to be had.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/promtool

fetch() {
	[[ ! -x $out/usr/bin/promtool ]] || return 0
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
	echo "promtool: fetching Debian's package (once)" >&2
	rm -rf "$out.new"
	mkdir -p "$out.new"
	(cd "$out.new" && apt-get -q download prometheus >&2 && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb) ||
		return 1
	rm -rf "$out"
	mv "$out.new" "$out"
}

promtool=$(command -v promtool || true)
if [[ -z $promtool ]]; then
	fetch || exit 3
	promtool=$out/usr/bin/promtool
fi
"$promtool" check rules --lint=all --lint-fatal contrib/prometheus/holdfast.rules.yaml
"$promtool" test rules contrib/prometheus/holdfast.tests.yaml
