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
cgroup=

# Children of a script ignore Ctrl-C, so each is told to end, and waited for.
clean_up() {
	# Who presses Ctrl-C again is impatient, and would leave half of it behind.
	trap '' INT TERM
	trap - EXIT
	((${#children[@]} == 0)) || kill "${children[@]}" 2>/dev/null || true
	wait || true
	# A shell that was moved in by hand may still be there; then the kernel keeps the cgroup, empty of programs.
	[[ -z $cgroup ]] || rmdir "$cgroup" 2>/dev/null || true
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
answers() {
	curl --silent --fail --max-time 1 --output /dev/null --unix-socket "$demo/admin.sock" http://localhost:9890/readyz
}

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

# Programs go to a cgroup of the demo's own, and pins to a BPF file system that only the daemon sees.
make_cgroup() {
	local root
	root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
	[[ -n $root ]] && ((EUID == 0)) || return 1
	cgroup=$root/${demo##*/}
	mkdir "$cgroup" 2>/dev/null || {
		cgroup=
		return 1
	}
	mkdir "$demo/bpf"
}

write_configuration() {
	sed "s|@DEMO@|$demo|g" examples/demo/holdfast.toml.in >"$demo/holdfast.toml"
	local keys="kind = \"kernel\"\ncgroup = \"$cgroup\"\nbpffs = \"$demo/bpf/holdfast\""
	[[ -z $cgroup ]] || sed -i "s|^kind = \"memory\"|$keys|" "$demo/holdfast.toml"
}

# The pins go with the mount, and the mount with the daemon: nothing stays.
start_daemon() {
	if [[ -n $cgroup ]]; then
		unshare --mount --propagation private sh -c \
			"mount -t bpf bpf '$demo/bpf' && exec '$bin/holdfast' run --config '$demo/holdfast.toml'" &
	else
		"$bin/holdfast" run --config "$demo/holdfast.toml" &
	fi
	daemon=$!
	children+=("$daemon")
}

cp -r examples/demo/manifests "$demo/manifests"
make_cgroup || echo "run: not root, or no cgroup v2: with the memory datapath, which translates no connection"
write_configuration

backend red 127.0.0.1:18081
backend blue 127.0.0.1:18082
start_daemon
wait_for_daemon

if [[ -n $cgroup ]]; then
	what="holdfast is running. It serves the processes in $cgroup and no other."
else
	what="holdfast is running with the memory datapath: it computes the whole table, and translates no connection."
fi
cat <<TEXT

$what
Now, in another terminal:

  make try                                            the table, and what a client gets
  curl localhost:9890/frontends                       the table again
  \$EDITOR $demo/manifests/web.yaml
                                                      change something, save, and look again

Ctrl-C ends it and removes $demo.

TEXT
wait "$daemon"
