#!/usr/bin/env bash
# Prepares what the tests of packages on booted systems need, and runs the one that boots a machine. `make host` runs
# all.
#
#   scripts/host.sh root RELEASE    the root file system of a Debian release, in target/host: shared by all clones
#   scripts/host.sh machine         the whole cycle in an emulated machine, with the kernel of Debian 12 and its systemd
#                                   as the first process, and then pods under profiles of AppArmor
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup host
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
in_root=systemd,systemd-sysv,dbus,iproute2,curl,procps,python3,rpm,dnf,minisign,apparmor,frr

# Debian 11 has no minisign.
packages() { if [[ $1 == bullseye ]]; then echo "${in_root/minisign/signify-openbsd}"; else echo "$in_root"; fi; }

# A root is made anew each month, because releases go on.
make_root() {
	local folder
	folder=$({ packages "$1" && date +%Y-%m; } | scripts/cached.sh "host/$1")
	exec 9>"$folder/lock"
	flock 9
	scripts/debian-root.sh "$folder/root" "$1" "$(dpkg --print-architecture)" "$(packages "$1")"
	# For one test alone, which starts it.
	rm -f "$folder/root/etc/systemd/system/multi-user.target.wants/frr.service"
	exec 9>&-
}

# The root as a disk image. It has room for what a test installs; what is not written takes no space on this disk.
make_image() {
	[[ ! $2 -nt $1 ]] || return 0
	mke2fs -q -F -t ext4 -d "$1" "$2.new" 1G >/dev/null && mv "$2.new" "$2"
}

machine() {
	local files=() path image=$target/host/bookworm/root.ext4 program
	scripts/setup vm
	make_root bookworm
	make_image "$target/host/bookworm/root" "$image"
	program=$("$target/debug/suite" programs tests/host)
	for path in "$program" "$target/debug/bed_child" "$target"/packages-quick/{holdfast,holdfast_*_amd64.deb} \
		tests/systems/host/{pods.sh,cri-containerd.apparmor} contrib/apparmor/holdfast-pod; do
		files+=(--with "$path")
	done
	"$target/debug/vm" run --disk "$image" --memory-mib 1024 --seconds 900 "${files[@]}" 6.1 tests/systems/host/guest.sh
}

case ${1:-} in
root) make_root "$2" ;;
machine) machine ;;
*)
	echo "host: root RELEASE or machine" >&2
	exit 64
	;;
esac
