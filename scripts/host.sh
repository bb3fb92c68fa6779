#!/usr/bin/env bash
# Prepares what the tests of packages on booted systems need, and runs the one that boots a machine. `make host` runs
# all.
#
#   scripts/host.sh root RELEASE    the root file system of a Debian release, in target/host: shared by all clones
#   scripts/host.sh machine         the whole cycle in an emulated machine, with the kernel of Debian 12 and its systemd
#                                   as the first process, and then pods under profiles of AppArmor
#   scripts/host.sh selinux         the same with SELinux and Debian's policy instead of AppArmor, from the boot on
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup host
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
in_root=systemd,systemd-sysv,dbus,iproute2,curl,procps,python3,rpm,dnf,minisign,apparmor,frr

# Debian 11 has no minisign.
packages() { if [[ $1 == bullseye ]]; then echo "${in_root/minisign/signify-openbsd}"; else echo "$in_root"; fi; }

with_selinux=systemd,systemd-sysv,dbus,iproute2,curl,procps,selinux-policy-default,policycoreutils

# A root is made anew each month, because releases go on.
make_root() {
	local name=$1 release=$2 packages=$3 folder
	folder=$({ echo "$packages" && date +%Y-%m; } | scripts/cached.sh "host/$name")
	exec 9>"$folder/lock"
	flock 9
	scripts/debian-root.sh "$folder/root" "$release" "$(dpkg --print-architecture)" "$packages"
	# For one test alone, which starts it.
	rm -f "$folder/root/etc/systemd/system/multi-user.target.wants/frr.service"
	exec 9>&-
}

# The root as a disk image. It has room for what a test installs; what is not written takes no space on this disk.
make_image() {
	[[ ! $2 -nt $1 ]] || return 0
	mke2fs -q -F -t ext4 -d "$1" "$2.new" 1G >/dev/null && mv "$2.new" "$2"
}

# Labels all files, as an installation with SELinux does. Denials that the policy would not report count too. setfiles
# needs a /proc, and this machine's may not stay mounted there.
label() {
	[[ ! $1/../labelled -nt $1 ]] || return 0
	sed -i 's/^SELINUX=.*/SELINUX=enforcing/' "$1/etc/selinux/config"
	# shellcheck disable=SC2016
	unshare --mount bash -euc '
		mount -t proc proc "$0/proc"
		chroot "$0" semodule --noreload --disable_dontaudit --build
		chroot "$0" setfiles -m -F -e /proc /etc/selinux/default/contexts/files/file_contexts /
	' "$1"
	touch "$1/../labelled"
}

# The cycle in an emulated machine; further words are options of `vm run`.
boot() {
	local files=() path image=$1 program
	program=$("$target/debug/suite" programs tests/host)
	for path in "$program" "$target/debug/bed_child" "$target"/packages-quick/{holdfast,holdfast_*_amd64.deb} \
		tests/systems/host/{pods.sh,cri-containerd.apparmor} contrib/apparmor/holdfast-pod; do
		files+=(--with "$path")
	done
	"$target/debug/vm" run --disk "$image" --memory-mib 1024 --seconds 1100 "${@:2}" "${files[@]}" \
		6.1 tests/systems/host/guest.sh
}

machine() {
	scripts/setup vm
	make_root bookworm bookworm "$(packages bookworm)"
	make_image "$target/host/bookworm/root" "$target/host/bookworm/root.ext4"
	boot "$target/host/bookworm/root.ext4"
}

# A policy is built when the module comes and when it goes: in there that takes more than a minute, of which limits of
# time know nothing. So its clock goes slower.
selinux() {
	scripts/setup vm
	make_root selinux bookworm "$with_selinux"
	label "$target/host/selinux/root"
	make_image "$target/host/selinux/root" "$target/host/selinux/root.ext4"
	boot "$target/host/selinux/root.ext4" --slower 4 --append "security=selinux selinux=1 enforcing=1"
}

case ${1:-} in
root) make_root "$2" "$2" "$(packages "$2")" ;;
machine) machine ;;
selinux) selinux ;;
*)
	echo "host: root RELEASE, machine or selinux" >&2
	exit 64
	;;
esac
