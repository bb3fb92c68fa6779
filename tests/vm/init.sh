#!/bin/sh
# The first process of a guest: mounts what a node has, loads the modules, runs /payload/run and says its exit code in
# the last line of the second serial port. /payload/mark holds how that line begins.
export PATH=/payload:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root RUST_BACKTRACE=0
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
stty -F /dev/ttyS1 -opost
for module in /modules/*.ko; do
	insmod "$module" || echo "insmod $module failed" >/dev/console
done
hostname guest
ip link set lo up
cd /payload || exit
exec >/dev/ttyS1 2>&1 </dev/null
./run
code=$?
echo
echo "$(cat mark)$code"
sync
poweroff -f
