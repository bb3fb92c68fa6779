#!/usr/bin/env bash
# The incident, in the demo that `make run` started: what holdfast does, and what clients get meanwhile. It leaves the
# demo as it was. Each paragraph says first why it is shown.
set -euo pipefail

# A web client's patience with a machine that is busy.
PATIENCE=10

fail() {
	echo "try: $*" >&2
	exit 1
}

# A folder of another user could have commands of theirs.
is_living_demo() {
	[[ -O $1 && ! -L $1 && -e $1/ready && -e /proc/$(<"$1/owner") ]]
}

# The latest demo of this user.
find_demo() {
	local folder
	while read -r folder; do
		! is_living_demo "$folder" || {
			echo "$folder"
			return
		}
	done < <(ls -dt "${TMPDIR:-/tmp}"/holdfast-demo.* 2>/dev/null)
	return 1
}

demo=$(find_demo) || fail "no demo of this user runs; start \`make run\` in another terminal, both with sudo or none"
exec 9>"$demo/try.lock"
flock --nonblock 9 || fail "another \`make try\` is telling its story; try again when it has ended"

# Put the manifests of a folder in place of those that differ, each at once.
put_manifests() {
	local file
	for file in "$1"/*.yaml; do
		cmp -s "$file" "$demo/manifests/${file##*/}" || {
			cp "$file" "$demo/edited"
			mv "$demo/edited" "$demo/manifests/${file##*/}"
		}
	done
}

# Put everything back, also after Ctrl-C, and after one that was killed.
restore() {
	trap '' INT TERM HUP PIPE
	rm -f "$demo/traffic" "$demo/blue.down"
	[[ ! -e $demo/before || ! -e $demo/ready ]] || {
		put_manifests "$demo/before"
		rm -r "$demo/before"
	}
}
trap restore EXIT

# The story is that of the demo's own manifests. Changes of the user come back at the end.
begin() {
	restore
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	trap - PIPE
	# One that was interrupted here has left a part of it.
	rm -rf "$demo/before.new"
	cp -r "$demo/manifests" "$demo/before.new"
	mv "$demo/before.new" "$demo/before"
	put_manifests "$demo/original"
}

node() {
	"$demo/node" "$@"
}

client() {
	"$demo/client" "$@"
}

# Connect four times, and further until both backends have answered: each connection meets one at random.
meet_both() {
	local answers=()
	echo "client\$ curl 192.0.2.80, again and again"
	while ((${#answers[@]} < 20)); do
		answers+=("$(client curl --silent --show-error --max-time "$PATIENCE" 192.0.2.80 2>&1 || true)")
		((${#answers[@]} < 4)) || [[ ${answers[*]} != *red* || ${answers[*]} != *blue* ]] || break
	done
	echo "${answers[*]}"
}

# Show a command line, and what it prints.
show() {
	echo "node\$ $*"
	node sh -c "$*" || true
}

# What clients outside of the node get at these addresses, one after another, in one line.
dial() {
	echo "client\$ curl $*"
	for address in "$@"; do
		client curl --silent --show-error --max-time "$PATIENCE" "$address" 2>&1 || true
	done | paste -sd ' '
}

# Wait until a command succeeds, while the demo runs.
await() {
	for _ in {1..600}; do
		! "$@" || return 0
		[[ -e $demo/ready ]] || fail "the demo has ended"
		sleep 0.1
	done
	fail "this did not come about within a minute: $*"
}

prints() {
	[[ $(node "${@:2}" 2>&1) == *"$1"* ]]
}

# Change one of the demo's manifests as an editor does.
edit() {
	sed "$2" "$demo/original/$1" >"$demo/edited"
	mv "$demo/edited" "$demo/manifests/$1"
}

# The reason for a paragraph.
paragraph() {
	printf '\n%s\n' "$1"
}

a_backend_dies() {
	paragraph "A backend dies: the TCP check of a [[service]] sees it, and its row is out of use."
	echo "blue\$ kill $(<"$demo/blue.pid")"
	touch "$demo/blue.down"
	node sh -c "kill $(<"$demo/blue.pid")"
	await prints unready holdfast backends static/colours
	show holdfast backends static/colours
	rm "$demo/blue.down"
}

# The first of the file's slices is that of default/kubernetes.
NOBODY='0,/^endpoints:/{/^endpoints:/,/^---/{/^---/!d}}'

a_list_vanishes() {
	paragraph "By mistake an apiserver empties the list of its own Service: holdfast holds it, and no other one changes."
	echo "editor\$ vi $demo/manifests/incident.yaml     (default/kubernetes: no endpoints)"
	edit incident.yaml "$NOBODY"
	await prints "is held" holdfast explain 192.168.0.1:443
	[[ ! -e $demo/client ]] || dial 192.168.0.1:443 10.15.1.8:443
	show "holdfast explain 192.168.0.1:443 | head -n 1"
	show "holdfast explain 10.15.1.8:443 | head -n 1"
	edit incident.yaml ""
}

a_service_scales_to_zero() {
	paragraph "A Service scales to zero, on purpose (endpoints were terminating first): clients are refused at once."
	edit web.yaml 's/ready: true, serving: true, terminating: false/ready: false, serving: true, terminating: true/'
	await prints draining holdfast frontends demo/web
	edit web.yaml '/^endpoints:/s/$/ []/; /^  - addresses:/,/^    conditions:/d'
	await prints "refuses every" holdfast explain 192.0.2.80:80
	[[ ! -e $demo/client ]] || dial 192.0.2.80
	show "holdfast explain 192.0.2.80:80 | head -n 1"
	edit web.yaml ""
}

# Connect again and again while the file `traffic` is there, for ten minutes at most.
# shellcheck disable=SC2016  # The inner shell expands them.
TRAFFIC='set +e
for _ in $(seq 60000); do
	[ -e "$0/traffic" ] || exit 0
	curl --silent --show-error --output /dev/null --max-time 10 --write-out "%{http_code}\n" "http://192.0.2.80/?[1-10]"
done >"$0/codes" 2>"$0/errors"'

connects() {
	wc -l <"$demo/codes"
}

has_connects() {
	(($(connects) >= $1))
}

is_another_daemon() {
	[[ -s $demo/daemon.pid && $(<"$demo/daemon.pid") != "$1" ]]
}

is_ready() {
	node holdfast health ready >/dev/null 2>&1
}

killed_under_traffic() {
	local pid before after failed
	paragraph "kill -9 of holdfast under traffic: the kernel's programs go on, and the next process takes them over."
	await prints "is served" holdfast explain 192.0.2.80:80
	touch "$demo/traffic"
	: >"$demo/codes"
	client sh -c "$TRAFFIC" "$demo" &
	await has_connects 30
	pid=$(<"$demo/daemon.pid")
	before=$(connects)
	node sh -c "kill -9 $pid"
	await is_another_daemon "$pid"
	await is_ready
	after=$(connects)
	await has_connects $((after + 30))
	rm "$demo/traffic"
	wait $!
	failed=$(grep -vc 200 "$demo/codes" || true)
	echo "node\$ kill -9 $pid"
	echo "client\$ curl 192.0.2.80, again and again"
	echo "$((after - before)) connects while holdfast was away, $(connects) in all, $failed failed"
	sort "$demo/errors" | uniq -c
}

a_typo() {
	paragraph "Somebody mistypes a port (the pods listen at 18080): diagnose tries the backends, and says it first."
	edit web.yaml 's/port: 18080/port: 18088/'
	await prints 18088 holdfast backends demo/web
	show "holdfast diagnose demo/web | sed -n '4,6p'"
	edit web.yaml ""
}

as_before() {
	edit web.yaml ""
	await prints 10.244.2.2:18080 holdfast frontends demo/web
	await prints 10.244.2.2:18080 holdfast frontends static/colours
	paragraph "The demo is as before. What happened to each Service, and who did it: $demo/node holdfast history"
}

tell() {
	echo "A client outside of the node dials a load-balancer address, and meets both backends."
	meet_both
	a_backend_dies
	a_list_vanishes
	a_service_scales_to_zero
	killed_under_traffic
	a_typo
	as_before
}

tell_of_memory() {
	echo "Without root the maps are in memory and translate no connection. The table is what clients would get."
	show holdfast frontends
	a_list_vanishes
	a_service_scales_to_zero
	a_typo
	paragraph "The demo is as before. What happened to each Service, and who did it: $demo/node holdfast history"
}

begin
if [[ -e $demo/client ]]; then
	tell
else
	tell_of_memory
fi
