#!/bin/sh
# The first process of a guest without a disk: mounts what a node has, loads the modules, and does the errand.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $folder; done
ln -sf /proc/self/fd /dev/fd
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t securityfs securityfs /sys/kernel/security
for module in /modules/*.ko; do
	insmod "$module" || echo "insmod $module failed" >/dev/console
done
# As strict as a node with Secure Boot whose owner followed a guide to hardening. What works so works without.
harden() {
	echo "$1" >"$2" || echo "$2 does not take $1" >/dev/console
}
harden integrity /sys/kernel/security/lockdown
harden 2 /proc/sys/kernel/unprivileged_bpf_disabled
harden 2 /proc/sys/net/core/bpf_jit_harden
hostname guest
ip link set lo up
exec /errand
