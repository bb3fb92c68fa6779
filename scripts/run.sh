#!/usr/bin/env bash
# Build holdfast and run it with examples/demo, until Ctrl-C.
#
# As root the demo is a machine of its own: namespaces and a cgroup that end with it, so nothing of this machine
# changes. Without root holdfast computes the same table with maps in memory. What it writes is in a temporary folder.
#
#   HOLDFAST_PROGRAMS=FOLDER   run holdfast and holdfast-demo of this folder, and build nothing
#
# shellcheck disable=SC2317  # A trap calls most of the functions.
set -euo pipefail
cd "$(dirname "$0")/.."
demo=
cgroup=
children=0

say() {
	echo "run: $*"
}

fail() {
	echo "run: $*" >&2
	exit 1
}

# An ended process holds the cgroup until its parent has waited for it: wait, but not for a user's shell in there.
remove_cgroup() {
	for _ in {1..100}; do
		! rmdir "$cgroup" 2>/dev/null || return 0
		[[ -e $cgroup ]] || return 0
		sleep 0.05
	done
	say "$cgroup is left: other processes are in it" || true
}

# A process that the kernel is still ending may write.
remove_folder() {
	# A story that is being told learns of the end first.
	rm -f "$demo/ready"
	for _ in {1..100}; do
		! rm -rf "$demo" || return 0
		sleep 0.05
	done
	say "$demo is left: it cannot be removed" || true
}

# Children of a script ignore Ctrl-C, so kill each of them. The kernel ends all of the demo's machine with its first
# process.
clean_up() {
	local pids
	# Another Ctrl-C would leave half of the demo behind.
	trap '' INT TERM HUP PIPE
	trap - EXIT
	exec 7>&-
	pids=$(jobs -p)
	# shellcheck disable=SC2086  # They are numbers.
	[[ -z $pids ]] || kill -KILL $pids || true
	wait || true
	[[ -z $cgroup ]] || remove_cgroup
	[[ -z $demo ]] || remove_folder
}
# The shell would tell of each process that it kills.
trap 'clean_up 2>/dev/null' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 141' PIPE

# Run a step, and say what it took.
step() {
	local name=$1 begin=$SECONDS
	shift
	say "$name"
	"$@"
	say "$name: $((SECONDS - begin)) s"
}

# `sudo make run` builds as who typed it, with that user's Rust, and leaves no file of root's in the target folder.
as_user() {
	if ((EUID == 0)) && [[ -n ${SUDO_USER:-} && $SUDO_USER != root ]]; then
		sudo -u "$SUDO_USER" -H env PATH="$(getent passwd "$SUDO_USER" | cut -d: -f6)/.cargo/bin:$PATH" "$@"
	else
		"$@"
	fi
}

build() {
	local purpose=build
	programs=${HOLDFAST_PROGRAMS:-}
	[[ -z $programs ]] || return 0
	((EUID != 0)) || purpose=demo
	step "look for what is missing" as_user scripts/setup "$purpose"
	step "build holdfast" as_user cargo build --profile demo --locked --no-default-features \
		-p holdfast -p holdfast-demo --bins
	programs=${CARGO_TARGET_DIR:-target}/demo
}

# Attach the programs to the demo's own cgroup.
make_cgroup() {
	local mount
	mount=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
	[[ -n $mount ]] || return 1
	cgroup=$mount/${demo##*/}
	mkdir "$cgroup" 2>/dev/null || {
		cgroup=
		return 1
	}
}

# Make what the demo's machine needs of this one; `obstacle`: why that is not possible.
find_obstacle() {
	obstacle=
	if ((EUID != 0)); then
		obstacle="not root, which network namespaces and BPF programs need (sudo make run)"
	elif ! unshare --net --mount --pid --fork true 2>/dev/null; then
		obstacle="this system lets nobody make namespaces"
	elif ! make_cgroup; then
		obstacle="no cgroup v2 that root may write"
	fi
}

# Remove what is left of a demo of this user after its shell was killed.
sweep() {
	local old
	for old in "${TMPDIR:-/tmp}"/holdfast-demo.*; do
		[[ -O $old && ! -L $old && -s $old/owner && ! -e /proc/$(<"$old/owner") ]] || continue
		[[ ! -s $old/cgroup ]] || rmdir "$(<"$old/cgroup")" 2>/dev/null || true
		rm -rf "$old"
	done
}

# Each name is known before its folder is there, so that Ctrl-C between the two removes it.
make_folder() {
	demo=${TMPDIR:-/tmp}/holdfast-demo.$$-$RANDOM
	mkdir -m 700 "$demo"
	echo $$ >"$demo/owner"
	cp -r examples/demo/manifests "$demo/manifests"
	# Only this shell has its writing end, so who reads learns of its end, whatever that is.
	mkfifo "$demo/life"
	exec 7<>"$demo/life"
}

# Start a child that dies with this shell.
child() {
	setpriv --pdeathsig KILL "$@" <"$demo/life" 7>&- &
	children=$((children + 1))
}

# Wait for something until a command succeeds, while all children live.
wait_for() {
	local what=$1 running
	shift
	for _ in {1..600}; do
		! "$@" || return 0
		# Ctrl-C ends this count too.
		running=$(jobs -pr | wc -l)
		((${running:-$children} == children)) || fail "a process of the demo ended at once; the lines above say why"
		sleep 0.1
	done
	fail "$what did not come within a minute"
}


# The first free port from 9890 on, so that two demos have a page each.
free_port() {
	for port in {9890..9899}; do
		(: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
	done
	fail "ports 9890 to 9899 of 127.0.0.1 are taken"
}

# Replace the first key of this name.
set_key() {
	sed -i "0,/^$1 = /s|^$1 = .*|$2|" "$demo/holdfast.toml"
}

write_configuration() {
	free_port
	sed "s|@DEMO@|$demo|g" examples/demo/holdfast.toml.in >"$demo/holdfast.toml"
	set_key listen "listen = \"127.0.0.1:$port\""
}

# A command that runs another one somewhere in the demo: `FOLDER/node holdfast status`.
write_command() {
	printf '#!/bin/sh\n%s\n' "$2" >"$demo/$1"
	chmod +x "$demo/$1"
}

run_world() {
	local enter path
	set_key kind "kind = \"kernel\"\ncgroup = \"$cgroup\""
	echo "$cgroup" >"$demo/cgroup"
	child "$programs/holdfast-demo" forward "$port" "$demo"
	child unshare --net --mount --pid --fork --kill-child --propagation private \
		bash examples/demo/world.sh "$demo" "$programs"
	wait_for "the demo's network" test -e "$demo/pid"
	what="holdfast is running on a machine of its own: a node, two pods, an apiserver, and a client outside of the node."
	enter="exec nsenter --target $(<"$demo/pid") --net --mount --pid --"
	path="PATH=$(printf %q "$programs"):\"\$PATH\""
	# The programs that serve the node's own processes are attached to this cgroup.
	write_command node "export $path; echo \$\$ >$(printf %q "$cgroup/cgroup.procs") && $enter \"\$@\""
	write_command client "$enter ip netns exec client \"\$@\""
}

# All addresses are of the loopback, and any user may listen there.
run_memory() {
	say "$obstacle"
	what="holdfast is running with maps in memory: it computes the whole table, but translates no connection."
	sed -i 's/\<10\.244\./127.244./g; s/\<169\.254\.128\.7\>/127.254.128.7/' "$demo"/manifests/*.yaml "$demo/holdfast.toml"
	set_key listen "listen = \"127.0.0.1:$port\"\nsocket = \"$demo/admin.sock\""
	child "$programs/holdfast-demo" serve red 127.244.1.2:18080
	child "$programs/holdfast-demo" serve blue 127.244.2.2:18080
	child "$programs/holdfast-demo" serve apiserver 127.254.128.7:60002
	child "$programs/holdfast" run --config "$demo/holdfast.toml"
	mkdir "$demo/bin"
	write_command bin/holdfast "exec $(printf %q "$programs/holdfast") --socket $(printf %q "$demo/admin.sock") \"\$@\""
	write_command node "export PATH=$(printf %q "$demo/bin"):\"\$PATH\"; exec \"\$@\""
}

is_ready() {
	"$demo/node" holdfast health ready >/dev/null 2>&1
}

say_next() {
	cat <<-TEXT

		$what
		Now, in another terminal:

		  make try                            an incident in forty lines, and what clients get meanwhile
		  $demo/node holdfast frontends
		                                      any command as on the node: holdfast, curl 10.96.0.80, sh
		  open http://localhost:$port/          the page: which services do not work, and why
		  \$EDITOR $demo/manifests/web.yaml
		                                      change something, save, and look again

		Ctrl-C ends it and removes $demo.

	TEXT
}

build
programs=$(cd "$programs" && pwd)
make_folder
write_configuration
find_obstacle
sweep
if [[ -z $obstacle ]]; then
	run_world
else
	run_memory
fi
cp -r "$demo/manifests" "$demo/original"
wait_for "holdfast" is_ready
touch "$demo/ready"
say_next
wait -n || true
fail "a process of the demo ended; the lines above say why"
