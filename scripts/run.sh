#!/usr/bin/env bash
# The first look: the real daemon with examples/demo and two small HTTP backends, until Ctrl-C.
# Everything it writes is in one temporary folder, which goes when it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup

echo "run: building holdfast"
cargo build --quiet --release --locked -p holdfast -p holdfast-tests --bin holdfast --bin echo_backend
bin=${CARGO_TARGET_DIR:-target}/release

demo=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-demo.XXXXXX")
children=()

# Children of a script ignore Ctrl-C, so each is told to end, and waited for.
clean_up() {
	trap - EXIT INT TERM
	((${#children[@]} == 0)) || kill "${children[@]}" 2>/dev/null || true
	wait || true
	rm -rf "$demo"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
	echo "run: $*" >&2
	exit 1
}

backend() {
	"$bin/echo_backend" "$1" "$2" &
	children+=($!)
}

# Our own socket, not the port: another holdfast may be the one that answers there.
answers() { curl --silent --fail --max-time 1 --output /dev/null --unix-socket "$demo/admin.sock" http://localhost:9890/readyz; }

wait_for_daemon() {
	for _ in {1..100}; do
		for child in "${children[@]}"; do
			kill -0 "$child" 2>/dev/null || fail "a part of the demo ended at once; its last lines above say why"
		done
		! answers || return 0
		sleep 0.1
	done
	fail "holdfast did not answer within 10 s"
}

cp -r examples/demo/manifests "$demo/manifests"
sed "s|@DEMO@|$demo|g" examples/demo/holdfast.toml.in >"$demo/holdfast.toml"

backend red 127.0.0.1:18081
backend blue 127.0.0.1:18082
"$bin/holdfast" run --config "$demo/holdfast.toml" &
daemon=$!
children+=("$daemon")
wait_for_daemon

cat <<TEXT

holdfast is running with the memory datapath: it computes the whole table, and translates no connection yet.
Now, in another terminal:

  make try                                            the table, and what answers behind it
  curl localhost:9890/frontends                       the table again
  \$EDITOR $demo/manifests/web.yaml
                                                      change something, save, and look again

Ctrl-C ends it and removes $demo.

TEXT
wait "$daemon"
