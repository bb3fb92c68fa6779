#!/usr/bin/env bash
# The machine of the demo: a node with holdfast, two pods, an apiserver, and a client outside of the node, each in a
# network of its own. scripts/run.sh starts it as the first process of namespaces of its own: what it mounts, names and
# starts is nobody else's, and the kernel ends all of it with this process. It ends when its standard input does.
#
# Usage: world.sh FOLDER PROGRAMS
set -euo pipefail
demo=$1
exec 8<&0 </dev/null
PATH=$2:$PATH
# The number of this process for those outside, while /proc is still theirs.
read -r pid _ </proc/self/stat

# A tmpfs over /run hides the sockets of this machine's services, also of a holdfast that it may have.
make_mounts() {
	mount -t proc proc /proc
	mount -t tmpfs -o mode=755 tmpfs /run
	mount -t bpf bpf /sys/fs/bpf
	mkdir /run/holdfast
}

# Make a network with one address, whose gateway is the node.
neighbour() {
	local name=$1 device=$2 gateway=$3 address=$4
	ip netns add "$name"
	ip link add "$device" type veth peer name eth0 netns "$name"
	ip address add "$gateway/24" dev "$device"
	ip link set "$device" up
	ip -n "$name" link set lo up
	ip -n "$name" address add "$address/24" dev eth0
	ip -n "$name" link set eth0 up
	ip -n "$name" route add default via "$gateway"
}

make_networks() {
	ip link set lo up
	sysctl -q net.ipv4.ip_forward=1
	neighbour client eth0 198.51.100.1 198.51.100.2
	ip route add default via 198.51.100.2
	neighbour red red 10.244.1.1 10.244.1.2
	neighbour blue blue 10.244.2.1 10.244.2.2
	neighbour apiserver api 169.254.128.1 169.254.128.7
}

# Start a backend, and start it again when it has ended and `FOLDER/NAME.down` is gone.
keep_backend() {
	while :; do
		ip netns exec "$1" holdfast-demo serve "$1" "$2" &
		echo $! >"$demo/$1.pid"
		wait $! || true
		while [[ -e $demo/$1.down ]]; do sleep 0.1; done
	done
}

# As systemd does: the end of a daemon that had been ready is followed by another start.
keep_daemon() {
	while :; do
		holdfast run --config "$demo/holdfast.toml" &
		echo $! >"$demo/daemon.pid"
		! wait $! || return 0
		[[ -e $demo/ready ]] || return 1
		sleep 0.2
	done
}

make_mounts
make_networks
keep_backend red 10.244.1.2:18080 &
keep_backend blue 10.244.2.2:18080 &
keep_backend apiserver 169.254.128.7:60002 &
echo "$pid" >"$demo/pid.new"
mv "$demo/pid.new" "$demo/pid"
keep_daemon &
daemon=$!
cat <&8 >/dev/null &
wait -n "$daemon" $! || true
