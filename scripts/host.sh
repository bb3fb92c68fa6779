#!/usr/bin/env bash
# Builds the packages and tests them on booted systems: systemd as the first process of Debian's releases, in
# namespaces. Each release's root file system is made once, in the target folder. Then the whole cycle once more in an
# emulated machine, with the kernel of Debian 12 and its systemd as the first process. Needs root.
#
#   scripts/host.sh             every release, and the machine
#   scripts/host.sh bookworm    one of them
#   scripts/host.sh machine     the machine
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup host

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/host"
target=$(realpath "$target")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# One date for all, also for the packages that a test builds again to compare.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# A second version of the same sources is what an upgrade needs.
HOLDFAST_BINARY=$(scripts/package-build.sh)
export HOLDFAST_BINARY
for kind in deb rpm; do
	scripts/package.sh "$kind"
	PACKAGE_VERSION=${version%.*}.$((${version##*.} + 1)) scripts/package.sh "$kind"
done

make_root() {
	local in_root=systemd,systemd-sysv,dbus,iproute2,curl,procps,python3,rpm
	scripts/debian-root.sh "$target/host/$1" "$1" "$(dpkg --print-architecture)" "$in_root"
}

# The root as a disk has it. There is room for what a test installs; what is not written takes no place.
make_image() {
	[[ ! $2 -nt $target/host/$1 ]] || return 0
	mke2fs -q -F -t ext4 -d "$target/host/$1" "$2.new" 1G >/dev/null && mv "$2.new" "$2"
}

# The kernel and the root of one release, as its users have them.
machine() {
	local image=$target/host/bookworm.ext4 built program
	if [[ $(uname -m) != x86_64 ]]; then
		echo "not run here: host: the cycle in a machine with a distribution's kernel (needs x86_64)"
		return
	fi
	# Nothing in here ends the script by itself: its caller asks how it went.
	scripts/setup vm && make_root bookworm && make_image bookworm "$image" || return 1
	echo "== host: Debian bookworm in a machine with its own kernel"
	built=$(cargo test --workspace --locked --features holdfast-tests/root --no-run --test host 2>&1) || {
		echo "$built"
		return 1
	}
	scripts/test-programs.sh --quiet || return 1
	program=$(sed -nE 's/^ *Executable .*\((.*\/host-[0-9a-f]+)\)$/\1/p' <<<"$built")
	local files=(--with "$program" --with "$target/debug/bed_child")
	for path in "$target"/packages/holdfast_*_amd64.deb; do
		files+=(--with "$path")
	done
	"$target/debug/vm" run --disk "$image" --memory-mib 1024 --seconds 900 "${files[@]}" 6.1 tests/host/guest.sh
}

# The tests on one release; its root is there.
on_release() {
	HOLDFAST_HOST_ROOT=$target/host/$1 HOLDFAST_PACKAGES=$target/packages \
		scripts/steady.sh cargo test --workspace --locked --no-fail-fast --features holdfast-tests/root --test host -- \
		--test-threads 2 --show-output
}

# systemd 247, 252 and 257.
releases=("$@")
((${#releases[@]} > 0)) || releases=(bookworm trixie bullseye machine)
for release in "${releases[@]}"; do
	[[ $release == machine ]] || make_root "$release"
done
# What all of them run is built once.
cargo test --quiet --workspace --locked --features holdfast-tests/root --no-run --test host

# Booted systems mostly wait: for units to end, for watchdogs, for a figure's minute. So they run side by side, and each
# says how it went when those before it have.
logs=$(mktemp -d)
started=()
# Each is a group of its own, because what runs in the background does not hear an interrupt.
set -m
# shellcheck disable=SC2317 # the trap calls it
end_all() {
	for group in "${started[@]}"; do
		kill -- "-$group" 2>/dev/null || true
	done
	rm -rf "$logs"
}
trap end_all EXIT
for release in "${releases[@]}"; do
	if [[ $release == machine ]]; then
		machine >"$logs/$release" 2>&1 &
	else
		on_release "$release" >"$logs/$release" 2>&1 &
	fi
	started+=("$!")
done
status=0
for at in "${!releases[@]}"; do
	wait "${started[at]}" || status=1
	[[ ${releases[at]} == machine ]] || echo "== host: Debian ${releases[at]}"
	cat "$logs/${releases[at]}"
done
exit "$status"
