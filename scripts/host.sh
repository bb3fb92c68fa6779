#!/usr/bin/env bash
# Prepares what the tests of packages on booted systems need, and runs the one that boots a machine. `make host` runs
# all.
#
#   scripts/host.sh root RELEASE    the root file system of a Debian release, in target/host: shared by all clones
#   scripts/host.sh firewalls       the same of Debian 13 with its firewalls, none of which is on
#   scripts/host.sh machine         the whole cycle in an emulated machine, with the kernel of Debian 12 and its systemd
#                                   as the first process, and then pods under profiles of AppArmor
#   scripts/host.sh machine arm64   the cycle in an emulated machine of arm64
#   scripts/host.sh disk arm64      the disk of that machine, in target/host: shared by all clones
#   scripts/host.sh selinux         the cycle with SELinux and Debian's policy instead of AppArmor, from the boot on
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup host
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
architecture=amd64 built=$target
in_root=systemd,systemd-sysv,dbus,iproute2,curl,procps,python3,rpm,dnf,minisign,apparmor,frr

# Debian 11 has no minisign.
packages() { if [[ $1 == bullseye ]]; then echo "${in_root/minisign/signify-openbsd}"; else echo "$in_root"; fi; }

for_arm64=systemd,systemd-sysv,dbus,iproute2,curl,procps,apparmor

with_firewalls=systemd,systemd-sysv,dbus,iproute2,procps,firewalld,ufw,nftables

with_selinux=systemd,systemd-sysv,dbus,iproute2,curl,procps,selinux-policy-default,policycoreutils

# A root is made anew each month, because releases go on.
make_root() {
	local name=$1 release=$2 packages=$3 folder
	folder=$({ echo "$packages" && date +%Y-%m; } | scripts/cached.sh "host/$name")
	exec 9>"$folder/lock"
	flock 9
	scripts/debian-root.sh "$folder/root" "$release" "$(dpkg --print-architecture)" "$packages"
	# For one test alone, which starts it.
	rm -f "$folder/root/etc/systemd/system/multi-user.target.wants/"{frr,firewalld}.service
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

# Programs of arm64 do not run here. So their packages are unpacked here, and installed where their scripts run.
make_disk_arm64() {
	local folder script=tests/systems/host/finish_root.sh
	architecture=arm64 built=$target/aarch64-unknown-linux-gnu
	scripts/setup vm arm64
	folder=$({ echo "$for_arm64" && date +%Y-%m; } | scripts/cached.sh host/arm64 "$script")
	disk=$folder/root.ext4
	exec 9>"$folder/lock"
	flock 9
	[[ -e $disk ]] || {
		echo "making a disk of Debian bookworm for arm64 in $folder (once)" >&2
		unpack_arm64 "$folder/root"
		rm -f "$folder/unfinished"
		make_image "$folder/root" "$folder/unfinished"
		guest --second "$folder/unfinished" "$script" >"$folder/log" || {
			tail -n 40 "$folder/log" >&2
			return 1
		}
		mv "$folder/unfinished" "$disk"
		rm -rf --one-file-system "$folder/root"
	}
	exec 9>&-
}

# What nobody reads in there would take an emulator minutes to install.
unpack_arm64() {
	rm -rf --one-file-system "$1"
	mmdebstrap --quiet --variant=extract --architectures=arm64 --include='?essential' --include="$for_arm64" \
		--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --skip=essential/unlink,cleanup/apt \
		--aptopt='Acquire::Check-Valid-Until "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		bookworm "$1" "deb http://deb.debian.org/debian bookworm main" >&2
}

# Runs a script in an emulated machine; further words are options of `vm run`.
guest() {
	"$target/debug/vm" --architecture "$architecture" run --memory-mib 1024 --seconds 1100 "${@:1:$#-1}" 6.1 "${@: -1}"
}

# The cycle in an emulated machine; further words are options of `vm run`.
boot() {
	local files=() path program
	program=$(CARGO_TARGET_DIR=$built "$target/debug/suite" programs tests/host)
	for path in "$program" "$built/debug/bed_child" "$target"/packages-quick/holdfast_*_"$architecture".deb; do
		files+=(--with "$path")
	done
	guest --disk "$1" "${@:2}" "${files[@]}" tests/systems/host/guest.sh
}

machine() {
	local files=() path
	scripts/setup vm
	make_root bookworm bookworm "$(packages bookworm)"
	make_image "$target/host/bookworm/root" "$target/host/bookworm/root.ext4"
	for path in "$target/packages-quick/holdfast" tests/systems/host/{pods.sh,cri-containerd.apparmor} \
		contrib/apparmor/holdfast-pod; do
		files+=(--with "$path")
	done
	boot "$target/host/bookworm/root.ext4" "${files[@]}"
}

# Pods under profiles are the same on both. This processor is emulated at half the speed, so limits of time in there get
# more of it.
machine_arm64() {
	local disk
	make_disk_arm64
	boot "$disk" --slower 4
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

case "${1:-} ${2:-}" in
"root "?*) make_root "$2" "$2" "$(packages "$2")" ;;
"firewalls ") make_root firewalls trixie "$with_firewalls" ;;
"machine ") machine ;;
"machine arm64") machine_arm64 ;;
"disk arm64") make_disk_arm64 ;;
"selinux ") selinux ;;
*)
	echo "host: root RELEASE, firewalls, machine [arm64], disk arm64 or selinux" >&2
	exit 64
	;;
esac
