#!/usr/bin/env bash
# Run the real daemon with examples/demo and two small HTTP backends, until Ctrl-C.
# Everything it writes is in one temporary folder, which it removes at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup

echo "run: building holdfast"
cargo build --quiet --release --locked -p holdfast -p holdfast-tests --bin holdfast --bin echo_backend
bin=${CARGO_TARGET_DIR:-target}/release

demo=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-demo.XXXXXX")
children=()
cgroup=
# A veth leads from this network to another one, whose clients are outside of the node. The addresses are for examples.
wire=demo-${demo##*.}
here=198.51.100.1
there=198.51.100.2
home=127.0.0.1

# Children of a script ignore Ctrl-C, so kill each of them and wait.
clean_up() {
	# Another Ctrl-C would leave half of the demo behind.
	trap '' INT TERM
	trap - EXIT
	((${#children[@]} == 0)) || kill "${children[@]}" 2>/dev/null || true
	wait || true
	ip link delete "$wire" 2>/dev/null || true
	# A shell that a user moved in may still be there; then the kernel keeps the cgroup, without programs.
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

# Ask the demo's own socket, not the port: another holdfast may answer at the port.
answers() {
	curl --silent --fail --max-time 1 --output /dev/null --unix-socket "$demo/admin.sock" http://localhost:9890/readyz
}

wait_for_daemon() {
	for _ in {1..100}; do
		for child in "${children[@]}"; do
			kill -0 "$child" 2>/dev/null || fail "a process of the demo ended at once; its last lines above say why"
		done
		! answers || return 0
		sleep 0.1
	done
	fail "holdfast did not answer within 10 s"
}

# Attach the programs to the demo's own cgroup, and pin them in a BPF file system that only the daemon sees.
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

# Make a network that ends with its one process. The veth ends with it.
make_outside() {
	local outside
	unshare --net sleep infinity &
	outside=$!
	children+=("$outside")
	for _ in {1..50}; do
		[[ $(readlink "/proc/$outside/ns/net") == $(readlink /proc/self/ns/net) ]] || break
		sleep 0.02
	done
	ip link add "$wire" type veth peer name eth0 netns "$outside" 2>/dev/null || return 1
	ip address add "$here/30" dev "$wire" && ip link set "$wire" up
	nsenter --net --target "$outside" sh -c "ip address add $there/30 dev eth0 && ip link set eth0 up &&
		ip route add default via $here"
	echo "$outside" >"$demo/outside"
	home=$here
}

# Replace the first key of this name.
set_key() {
	sed -i "0,/^$1 = /s|^$1 = .*|$2|" "$demo/holdfast.toml"
}

write_configuration() {
	sed "s|@DEMO@|$demo|g; s|127.0.0.1:1808|$home:1808|g" examples/demo/holdfast.toml.in >"$demo/holdfast.toml"
	sed -i "s|\[127.0.0.1\]|[$home]|" "$demo"/manifests/*.yaml
	[[ -z $cgroup ]] || set_key kind "kind = \"kernel\"\ncgroup = \"$cgroup\"\nbpffs = \"$demo/bpf/holdfast\""
	[[ $home != "$here" ]] || {
		set_key name "name = \"demo\"\nnode_port_addresses = [\"$here/32\"]"
		set_key enabled "enabled = true\ndevices = [\"$wire\"]"
	}
}

# The pins end with the mount, and the mount with the daemon.
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
make_cgroup || echo "run: not root, or no cgroup v2: using the memory datapath, which translates no connection"
[[ -z $cgroup ]] || make_outside || echo "run: cannot make a veth pair: the demo has no clients from outside"
write_configuration

backend red "$home:18081"
backend blue "$home:18082"
start_daemon
wait_for_daemon

if [[ -n $cgroup ]]; then
	what="holdfast is running. It serves the processes in $cgroup, and clients that arrive at $wire."
else
	what="holdfast is running with the memory datapath: it computes the whole table, but translates no connection."
fi
cat <<TEXT

$what
Now, in another terminal:

  make try                                            the table, and what a client gets
  curl localhost:9890/frontends                       the table again
  open http://localhost:9890/ in a browser            the page: which services do not work, and why
  \$EDITOR $demo/manifests/web.yaml
                                                      change something, save, and look again

Ctrl-C ends it and removes $demo.

TEXT
wait "$daemon"
