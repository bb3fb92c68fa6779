#!/bin/sh
# The first process of a guest with a disk, until the systemd there takes its place. The errand becomes a service of
# that system, in a root of its own in memory: it lays nothing down on the disk that it is to judge, and brings its own
# libraries.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
for module in /modules/*.ko; do
	insmod "$module" || echo "insmod $module failed" >/dev/console
done
# Its service manager mounts everything else, as on any node.
mount /dev/vda /disk
mount -t tmpfs -o mode=755 tmpfs /disk/run
outside=/disk/run/outside
units=/disk/run/systemd/system
mkdir -p "$outside/tmp" "$outside/root" "$units/multi-user.target.wants"
cp -a /bin /etc /usr /payload /errand "$outside"
# The loader's folder has its name from the architecture.
cp -a /lib* "$outside"
cat >"$units/errand.service" <<UNIT
[Service]
RootDirectory=/run/outside
MountAPIVFS=no
SELinuxContext=-unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023
BindPaths=/proc /sys /dev
ExecStart=/errand
UNIT
ln -s ../errand.service "$units/multi-user.target.wants"
umount /proc
exec switch_root /disk /lib/systemd/systemd
