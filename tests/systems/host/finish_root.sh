#!/bin/sh
# Installs the packages of the root file system on the first disk, which a machine of another architecture has only
# unpacked: here their own scripts run. Leaves nothing of what it needed.
set -eu
root=/disk
archives=/var/cache/apt/archives
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true PATH=/usr/sbin:/usr/bin:/sbin:/bin
# A power failure in here makes a new root, so nothing has to wait for the disk.
install="/usr/bin/dpkg --force-depends --force-unsafe-io --install"

mount /dev/vda "$root"
for folder in proc sys dev; do mount --bind "/$folder" "$root/$folder"; done
mount -t tmpfs tmpfs "$root/run"
# The users come first, because other packages' scripts name them. Paths are whole, because this shell would take
# its own program for a name.
chroot "$root" /bin/sh -euc "$install $archives/base-passwd_* $archives/base-files_*; $install $archives/*.deb"
rm -rf "$root$archives" "$root"/var/lib/apt/lists/* "$root"/var/log/*.log "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap
[ -z "$(chroot "$root" /usr/bin/dpkg --audit)" ]
for folder in run dev sys proc; do umount "$root/$folder"; done
umount "$root"
