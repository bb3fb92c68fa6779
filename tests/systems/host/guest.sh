#!/bin/sh
# What a guest with a distribution's system is for: the package's whole cycle, and then pods under profiles of AppArmor.
# The programs, the packages and the profiles lie beside this.
set -eu
here=$(dirname "$0")
export HOLDFAST_PACKAGES="$here"
set -- "$here"/host-*
"$1" --exact cycle::install_upgrade_and_purge_in_one_boot --nocapture

# With SELinux in AppArmor's place, or on another architecture, the cycle is all.
[ -e "$here/pods.sh" ] || exit 0

# The system's root, seen from here.
root=/proc/1/root
mkdir -p "$root/srv/profiles"
cp "$here/holdfast" "$root/usr/bin/holdfast"
cp "$here/cri-containerd.apparmor" "$root/srv/profiles/cri-containerd.apparmor.d"
cp "$here/holdfast-pod" "$root/srv/profiles/holdfast-pod"
cp "$here/pods.sh" "$root/srv/pods.sh"
for profile in cri-containerd.apparmor.d holdfast-pod; do
	nsenter --target 1 --mount --uts --ipc --net --pid --root --wd bash /srv/pods.sh "$profile"
done
