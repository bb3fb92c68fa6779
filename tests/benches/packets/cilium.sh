#!/bin/sh
# A node's Cilium in the node's network and in mounts of its own. The caller has put this process into a cgroup that is
# the agent's own, which is the root of what the agent sees: its programs for sockets cannot be attached any higher.
#
#   unshare -m -C cilium.sh LAYER FOLDER [agent's arguments]
set -e
layer=$1 folder=$2
shift 2
mount --make-rprivate /
mkdir -p "$folder/run"
# What is not of a namespace the agent writes to copies.
for setting in unprivileged_bpf_disabled timer_migration; do
	cp "/proc/sys/kernel/$setting" "$folder/$setting"
	mount --bind "$folder/$setting" "/proc/sys/kernel/$setting"
done
# The agent wants one of them, and takes those that are covered for more.
while umount /sys/fs/bpf 2>/dev/null; do :; done
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
mount --bind "$folder/run" /run
mkdir -p /run/cilium/cgroup
mount -t cgroup2 none /run/cilium/cgroup
# The programs that the agent calls, with all that they need.
mount --rbind "$layer/usr" /usr
exec "$layer/usr/bin/cilium-agent" --lib-dir="$layer" --state-dir=/run/cilium --bpf-root=/sys/fs/bpf \
	--cgroup-root=/run/cilium/cgroup "$@"
