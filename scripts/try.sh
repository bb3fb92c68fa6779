#!/usr/bin/env bash
# Asks the holdfast that `make run` started: its table, and the backends that the table names.
set -euo pipefail

admin=localhost:9890

show() {
	printf '\n$ %s\n' "$*"
	"$@"
}

curl --silent --fail --max-time 2 --output /dev/null "$admin/healthz" || {
	echo "try: nothing answers at $admin; start \`make run\` in another terminal first" >&2
	exit 1
}

show curl --silent --show-error "$admin/frontends"
show curl --silent --show-error "$admin/frontends?service=demo/empty"
show curl --silent --show-error "$admin/backends?service=demo/web"

printf '\nWhy is nobody behind that one, and what happened to the other?\n'
show curl --silent --show-error "$admin/explain?service=demo/empty"
show curl --silent --show-error "$admin/history?service=demo/web"

datapath=$(curl --silent --max-time 2 "$admin/datapath?format=json")
cgroup=$(sed -n 's/.*"cgroup": *"\([^"]*\)".*/\1/p' <<<"$datapath")
demo=$(sed -n 's/.*"pins": *"\([^"]*\)\/bpf\/holdfast".*/\1/p' <<<"$datapath")

# Only processes in the demo's cgroup are served: a shell moves itself there and becomes the client.
dial() {
	printf '\n$ curl %s     (from %s)\n' "$1" "$cgroup"
	sh -c 'echo $$ > "$0/cgroup.procs" && exec curl --silent --show-error --max-time 2 "$1"' "$cgroup" "$1" 2>&1 || true
}

# A client in the network at the other end of the demo's wire.
outside() {
	printf '\n$ curl %s     (from outside, 198.51.100.2)\n' "$1"
	nsenter --net --target "$(<"$demo/outside")" curl --silent --show-error --max-time 2 "$1" 2>&1 || true
}

if [[ -n $cgroup && -w $cgroup/cgroup.procs ]]; then
	dial 10.96.0.80
	dial 10.96.0.90
	printf '\nNobody is behind this one, so the kernel refuses at once, and holdfast says who asked:\n'
	dial 10.96.0.81
	sleep 0.2
	show curl --silent --show-error "$admin/refusals"
	[[ -r $demo/outside ]] || exit 0
	printf '\nWhoever is outside of the node reaches its port, and the load-balancer address:\n'
	outside 198.51.100.1:30080
	outside 192.0.2.80
	show curl --silent --show-error "$admin/explain?endpoint=198.51.100.1:30080&from=198.51.100.2"
	show curl --silent --show-error "$admin/flows"
else
	cat <<'TEXT'

The table is what a client would get. The memory datapath does not reach the kernel, so connections are not
translated: `curl 10.96.0.80` would leave this machine unanswered. The backends in the table answer directly:
TEXT
	show curl --silent --show-error --max-time 2 127.0.0.1:18081
	show curl --silent --show-error --max-time 2 127.0.0.1:18082
fi
