#!/usr/bin/env bash
# Checks the alerts of contrib/prometheus with Prometheus' own promtool, runs their tests, and has the questions of the
# dashboard in contrib/grafana read.
#
# It is taken from PATH; without one, and on the Debian family, from Debian's package, which is unpacked into the target
# folder: installing it would start a Prometheus here. Exit code 3: there is none to be had.
#
#   scripts/promtool.sh          checks
#   scripts/promtool.sh fetch    makes Prometheus itself be there, for tests that start one
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

if [[ ${1:-} == fetch ]]; then
	command -v prometheus >/dev/null || fetch || exit 3
	exit 0
fi
promtool=$(command -v promtool || true)
if [[ -z $promtool ]]; then
	fetch || exit 3
	promtool=$out/usr/bin/promtool
fi
"$promtool" check rules --lint=all --lint-fatal contrib/prometheus/holdfast.rules.yaml
"$promtool" test rules contrib/prometheus/holdfast.tests.yaml

# Each question of the dashboard as a rule of its own, with what Grafana would put in. A string of JSON is one of YAML.
questions() {
	echo 'groups: [{name: dashboard, rules: ['
	# shellcheck disable=SC2016 # The variables are Grafana's.
	sed -n 's/^ *"expr": \(".*"\),$/\1/p' contrib/grafana/holdfast.json |
		sed 's/\$__rate_interval/5m/g; s/\$node/.*/g' |
		awk '{ printf "{record: \"panel:%d\", expr: %s},\n", NR, $0 }'
	echo ']}]'
}

asked=$(mktemp --suffix=.yaml)
trap 'rm -f "$asked"' EXIT
questions >"$asked"
all=$(grep -c '"expr":' contrib/grafana/holdfast.json)
[[ $(grep -c '^{record:' "$asked") == "$all" ]] || {
	echo "promtool: of the dashboard's $all questions some are not on a line of their own" >&2
	exit 1
}
echo "The dashboard's $all questions:"
"$promtool" check rules "$asked" | tail -n +2
