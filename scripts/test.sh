#!/usr/bin/env bash
# Runs every rung of tests that can run on this machine and ends with one line, `N passed, N failed`.
# A rung that cannot run here is named in a line of its own before that. Nothing is skipped silently.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup

work=$(mktemp -d)
log=$work/log
mkdir "$work/groups"

# What runs in a group of its own does not hear an interrupt. A number may be somebody else's by now: the environment
# says whose it is.
end_all() {
	local group
	for group in "$work"/groups/*; do
		group=${group##*/}
		! grep -qszxF "TEST_OF=$work" "/proc/$group/environ" || kill -- "-$group" || true
	done
	rm -rf "$work"
}
trap end_all EXIT
broken=0
absent=()
times=()

# rung NAME NEEDS COMMAND...: runs the command if this machine has what it needs (`nothing` or `root`).
rung() {
	local name=$1 needs=$2
	shift 2
	if [[ $needs == root && $EUID -ne 0 ]]; then
		absent+=("not run here: $name (needs root)")
		return
	fi
	echo "== $name" | tee -a "$log"
	local since=$SECONDS
	"$@" 2>&1 | tee -a "$log" || broken=$((broken + 1))
	times+=("$(printf '%5d s  %s' $((SECONDS - since)) "$name")")
}

# A rung that needs what this machine lacks. In CI everything is there, or CI has to say so.
lacks() {
	absent+=("not run here: $1")
	[[ -z ${CI:-} ]] || broken=$((broken + 1))
}

# begin FILE COMMAND...: starts a command in a group of its own, `$group`, which ends with this script at the latest.
begin() {
	local file=$1
	shift
	set -m
	TEST_OF=$work "$@" </dev/null >"$file" 2>&1 &
	set +m
	group=$!
	touch "$work/groups/$group"
}

# within MINUTES COMMAND...: the command, ended if it takes longer.
within() {
	local minutes=$1 status=0
	shift
	begin "$work/said" timeout --kill-after=30 "${minutes}m" "$@"
	# Not a pipe: what the command has left running would keep that open for ever.
	tail -n +1 -f --pid="$group" "$work/said"
	wait "$group" || status=$?
	kill -KILL -- "-$group" 2>/dev/null || true
	rm "$work/groups/$group"
	# What timeout says if it was in time for a SIGTERM, and if not.
	((status != 124 && status != 137)) || echo "error: not done after $minutes minutes, and ended"
	return "$status"
}

# Tests that load programs say so by their names; without root they fail.
rung "core, simulation, scenarios, tidy" nothing scripts/steady.sh \
	cargo test --workspace --locked --no-fail-fast -- --skip kernel_
rung "kernel: maps, programs, sockets" root scripts/steady.sh cargo test --workspace --locked --no-fail-fast -- kernel_

# The whole workspace again, so that its parts are not built anew for other features.
whole=(scripts/steady.sh cargo test --workspace --locked --no-fail-fast --features holdfast-tests/root --test)
((EUID != 0)) || scripts/setup root
((EUID != 0)) || scripts/test-programs.sh
rung "programs: real sockets in a bed" root "${whole[@]}" programs -- --skip go_client
rung "packets: real traffic around a node" root "${whole[@]}" packets
rung "attack: as nobody and as a tenant" root "${whole[@]}" attack
# What packages carry: nine minutes of compiling. Idle: the next rungs have clocks, and times of waiting.
package=
if ((EUID == 0)); then
	begin "$work/package" chrt --idle 0 scripts/package-build.sh
	package=$group
fi
page="page: Chromium and Firefox before a daemon"
if ((EUID != 0)); then
	absent+=("not run here: $page (needs root, for the browsers' packages)")
elif timeout 900 scripts/setup page; then
	rung "$page" root "${whole[@]}" page -- --test-threads 1 --show-output
else
	absent+=("not run here: $page (needs what scripts/setup page could not bring; it said so above)")
fi
# Seconds each, and no figures: only that they still do what they measure. All of them, those of tomorrow too.
rung "benchmarks, short form" root "${whole[@]/--test/--bench}" '*'
if command -v go >/dev/null; then
	rung "programs: the client in Go" root "${whole[@]}" programs -- go_client
else
	lacks "programs: the client in Go (needs go: scripts/setup go)"
fi

cluster="cluster: etcd and Kubernetes' own servers"
if ((EUID != 0)); then
	absent+=("not run here: $cluster (needs root)")
elif scripts/peers.sh; then
	# Each test starts servers of its own, and they take a whole CPU until they are ready.
	rung "$cluster" root "${whole[@]}" cluster -- --test-threads 2 --show-output
else
	lacks "$cluster (needs what scripts/peers.sh said above; scripts/setup go brings Go)"
fi

# CI ends everything after 90 minutes; .ci/run says when that began, with lints before this script.
minutes_max=85
begun=${CI_BEGUN:-$EPOCHSECONDS}
minutes_left() { echo $((minutes_max - (EPOCHSECONDS - begun) / 60)); }

# Why there are no clusters of real nodes here; nothing if there are.
no_nodes=
if ((EUID != 0)); then
	no_nodes="needs root"
elif ! command -v apt-get >/dev/null; then
	no_nodes="needs Debian's tools"
elif ! command -v go >/dev/null; then
	no_nodes="needs go: scripts/setup go"
elif ! timeout 300 scripts/setup conformance; then
	no_nodes="needs what scripts/setup conformance could not bring; it said so above"
else
	# Ten minutes of compiling, where nothing is there yet. Idle: the next rungs have clocks, and times of waiting.
	begin "$work/programs" chrt --idle 0 scripts/conformance.sh programs
fi

if ((EUID == 0)) && ! command -v apt-get >/dev/null; then
	absent+=("not run here: host: packages under a booted systemd (needs Debian's tools)")
else
	# What failed in the background is done again in the foreground, which says why.
	[[ -z $package ]] || wait "$package" || true
	rung "host: packages under a booted systemd" root scripts/host.sh
fi

if [[ $(uname -m) == x86_64 ]] && command -v apt-get >/dev/null; then
	rung "kernel matrix: 5.10, 6.1, 6.12, 7.x" nothing scripts/matrix.sh
else
	absent+=("not run here: kernel matrix (needs Debian's packages, on x86_64)")
fi

# Last, because they can be left out.
if [[ -n $no_nodes ]]; then
	:
elif (($(minutes_left) <= 0)); then
	no_nodes="no time is left for it"
else
	# It waits for what runs in the background, and does again in the foreground what failed there.
	built=0
	within "$(minutes_left)" scripts/conformance.sh build || built=$?
	case $built in
	0) ;;
	124 | 137)
		no_nodes="its programs were not built in time"
		tail -n 20 "$work/programs"
		;;
	*) no_nodes="scripts/conformance.sh could not build it and said why above" ;;
	esac
fi

# in_time MINUTES MOST NAME COMMAND...: who needs the most that it may has failed. Who is ended before has not: it is
# the time of CI that is up, on a machine that is slow or has others to serve.
in_time() {
	local minutes=$1 most=$2 name=$3 status=0
	shift 3
	within "$minutes" "$@" || status=$?
	if ((status == 124 || status == 137)) && ((minutes < most)); then
		echo "not run to its end here: $name (the time of CI was up)"
		status=0
	fi
	return "$status"
}

# nodes MINUTES NAME COMMAND...: a rung in such clusters, if there is time for it.
nodes() {
	local minutes=$1 name=$2 most=$((2 * $1)) left
	shift 2
	left=$(minutes_left)
	if [[ -n $no_nodes ]]; then
		absent+=("not run here: $name ($no_nodes)")
	elif ((minutes > left)); then
		absent+=("not run here: $name (it may take $minutes minutes, and so many are not left)")
	else
		rung "$name" root in_time "$((most < left ? most : left))" "$most" "$name" "$@"
	fi
}

nodes 8 "conformance: Kubernetes' own tests, short form" scripts/conformance.sh short
nodes 6 "nodes: what kubelet says, restarts, reboots" scripts/steady.sh \
	cargo test --workspace --locked --features holdfast-tests/root,holdfast-conformance/cluster \
	--test nodes --test heard -- --test-threads 2 --show-output
nodes 4 "drill: kill -9 of the proxies under clients, short form" scripts/drill.sh short
nodes 12 "installed: as a package and as pods of a cluster, under traffic" scripts/installed.sh

# The sum over the lines in which each test binary, and each kernel of the matrix, says how it went.
sum() {
	awk -v field="$1" '
		/^test result: |^kernel [^:]*: / { for (i = 2; i <= NF; i++) if ($i ~ "^" field) n += $(i - 1) }
		END { print n + 0 }' "$log"
}
# What failed at first and passed alone has passed, and is named.
unsteady=$(grep -c '^unsteady: ' "$log") || true
passed=$(($(sum passed) + unsteady))
failed=$(($(sum failed) - unsteady))

# A build that fails or a test binary that dies leaves no line to count.
((failed >= broken)) || failed=$broken

# What went wrong stands far above: here it is once more, under the name of its rung.
((failed == 0)) || awk '
	/^== / { rung = $0 }
	/\.\.\. FAILED$|panicked at|^error[:[]|^again: |[1-9][0-9]* failed: / {
		if (rung != named) print "what failed " rung
		named = rung
		rest = 4
	}
	rest-- > 0 && said++ < 200' "$log"
grep -E '^(unsteady|not run to its end here): ' "$log" || true
printf '%s\n' "${times[@]}"
((${#absent[@]} == 0)) || printf '%s\n' "${absent[@]}"
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
