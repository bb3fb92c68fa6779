#!/bin/bash
# Boots a throw-away copy of a root file system with systemd as PID 1, in namespaces of its own:
#
#   boot.sh ROOT CGROUP
#
# To be run in a mount namespace of its own, in which it hides what it mounts. It ends when the systemd in it does, and
# everything goes with it but the cgroup. ROOT stays as it is: writes go to memory.
set -euo pipefail
lower=$1
cgroup=$2

echo $$ >"$cgroup/cgroup.procs"
work=$(mktemp -d)
mount -t tmpfs tmpfs "$work"
# The tmpfs hides the folder that it is mounted on.
mkdir "$work/upper" "$work/work" "$work/root"
root=$work/root
mount -t overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" overlay "$root"

# What wants devices or terminals, and the journal's own bound, which tests of floods would meet.
for unit in systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket \
	systemd-udev-trigger.service getty.target console-getty.service systemd-logind.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
export root

# The inner one needs mounts of its own too, or pivot_root would take the outer shell along. It expands what it gets by
# itself.
# shellcheck disable=SC2016
exec unshare --mount --propagation private --pid --net --uts --ipc --cgroup --fork --kill-child=KILL bash -euc '
	mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
	mount --bind "$root/proc/sys" "$root/proc/sys"
	mount -o remount,ro,bind "$root/proc/sys"
	mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
	mount -o remount,rw,bind "$root/proc/sys/net"
	mount -t sysfs -o nosuid,nodev,noexec sysfs "$root/sys"
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	mount -t bpf bpf "$root/sys/fs/bpf"
	mount -o remount,ro,bind "$root/sys"
	mount -t tmpfs -o mode=755 tmpfs "$root/dev"
	mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
	mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
	ln -s pts/ptmx "$root/dev/ptmx"
	mount -t tmpfs tmpfs "$root/dev/shm"
	for device in null zero full random urandom tty; do
		touch "$root/dev/$device"
		mount --bind "/dev/$device" "$root/dev/$device"
	done
	ln -s /proc/self/fd "$root/dev/fd"
	ln -s fd/0 "$root/dev/stdin"
	ln -s fd/1 "$root/dev/stdout"
	ln -s fd/2 "$root/dev/stderr"
	: >"$root/dev/console"
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	mkdir "$root/run/lock"
	hostname holdfast-test
	ip link set lo up
	cd "$root"
	pivot_root . mnt
	umount -l /mnt
	exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb setpriv \
		--bounding-set=-sys_module,-sys_rawio,-sys_time,-sys_boot,-mac_admin,-mac_override,-syslog,-wake_alarm \
		/lib/systemd/systemd
' </dev/null
